-- Amounts of money and of tokens, as people write them.

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
