-- Amounts of money and of tokens, and spans of time, as people write them.

-- Whether a text is an amount of money that a limit can have.
--
-- An amount of money is a decimal number for people, and counted in millionths.
CREATE OR REPLACE FUNCTION rate_limit_is_money(amount text) RETURNS boolean
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN amount ~ '^[0-9]{1,10}([.][0-9]{1,6}0*)?$' THEN amount::numeric <= 9007199254.740992
	ELSE false END;

-- What an amount of a unit counts: an amount of money in millionths, and any other one unchanged.
CREATE OR REPLACE FUNCTION rate_limit_units(amount text, unit text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE
	AS $$
BEGIN
	IF unit = 'money' AND rate_limit_is_money(amount) THEN
		RETURN amount::numeric * 1000000;
	ELSIF amount IS NOT NULL AND unit = 'money' OR amount !~ '^[0-9]{1,18}$' THEN
		RAISE invalid_parameter_value USING MESSAGE = format('amount: %s: must be %s', to_json(amount),
			CASE unit WHEN 'money' THEN '0 to 9007199254.740992 with at most 6 decimals'
				ELSE 'a whole number' END);
	END IF;
	RETURN amount;
END $$;

-- A row of a document with its amount of money in millionths (inward), or as a decimal number.
--
-- A document, and the log of changes for people, have amounts of money as decimal numbers.
CREATE OR REPLACE FUNCTION rate_limit_policy_amount(fields jsonb, is_money boolean, inward boolean)
	RETURNS jsonb LANGUAGE sql IMMUTABLE
RETURN CASE WHEN is_money IS NOT TRUE OR coalesce(fields ->> 'events', '') !~ '^[0-9]+([.][0-9]{1,6}0*)?$'
		THEN fields
	ELSE fields || jsonb_build_object('events', CASE WHEN inward
		THEN trim_scale((fields ->> 'events')::numeric * 1000000)
		ELSE trim_scale(rate_limit_decimal((fields ->> 'events')::bigint, 'money')) END) END;

-- The same for a row of a limit or an override. money has the limits in money, as RULE/LIMIT.
CREATE OR REPLACE FUNCTION rate_limit_policy_amounts(fields jsonb, money text[], inward boolean DEFAULT false)
	RETURNS jsonb LANGUAGE sql IMMUTABLE
RETURN rate_limit_policy_amount(fields, (fields ->> 'rule' || '/'
	|| coalesce(fields ->> 'limit_name', fields ->> 'name')) = ANY (money), inward);

-- An interval as a multiple of the largest unit that divides it, such as 90s or 24h.
--
-- Days are written as hours, as in the tables, because days vary in length. Months stay months, which no
-- valid window has.
CREATE OR REPLACE FUNCTION rate_limit_span(span interval) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN date_trunc('month', span) <> '0'
		THEN extract(year FROM span) * 12 + extract(month FROM span) || ' months'
	ELSE (SELECT trunc(extract(epoch FROM span) / u.seconds) || u.name
		FROM (VALUES (3600, 'h'), (60, 'm'), (1, 's'), (0.001, 'ms'), (0.000001, 'us')) AS u(seconds, name)
		WHERE extract(epoch FROM span) % u.seconds = 0 ORDER BY u.seconds DESC LIMIT 1) END;
