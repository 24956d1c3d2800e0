-- The prefix of the counters of a limit, from the names by which it and its rule count.
CREATE OR REPLACE FUNCTION rate_limit_prefix(rule text, limit_name text) RETURNS text
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'rule/' || rule || '/' || limit_name;

-- A number of units as a number: with six decimals for money, and any other one unchanged.
CREATE OR REPLACE FUNCTION rate_limit_decimal(units bigint, unit text) RETURNS numeric
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE unit WHEN 'money' THEN units * 0.000001 ELSE units END;
