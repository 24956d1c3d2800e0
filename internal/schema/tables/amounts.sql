CREATE OR REPLACE FUNCTION rate_limit_decimal(units bigint, unit text) RETURNS numeric
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE unit WHEN 'money' THEN units * 0.000001 ELSE units END;
COMMENT ON FUNCTION rate_limit_decimal IS
	'A number of units as a number: with six decimals for money, and any other one unchanged.';

CREATE OR REPLACE FUNCTION rate_limit_readable(amount numeric) RETURNS text
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN regexp_replace(amount::text, '([.]\d\d\d*?)0+$', '\1');
COMMENT ON FUNCTION rate_limit_readable IS 'An amount for people: at least two of its decimals.';
