-- The prices of language models. A cost in money is in millionths of the currency of the prices. So it is the
-- number of tokens times the price of a million of them.

CREATE TABLE IF NOT EXISTS rate_limit_prices (
	model             text NOT NULL,
	valid             tstzrange NOT NULL DEFAULT '(,)',
	input             numeric NOT NULL,
	cache_read        numeric,
	cache_write       numeric,
	output            numeric NOT NULL,
	above             bigint,
	above_input       numeric,
	above_cache_read  numeric,
	above_cache_write numeric,
	above_output      numeric,
	max_output        bigint,
	comment           text,
	created_at        timestamptz NOT NULL DEFAULT now(),
	updated_at        timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (model, valid),
	CONSTRAINT model_must_be_a_name_that_may_end_in_an_asterisk
		CHECK (model ~ '^([^*[:cntrl:]]{1,199}|[^*[:cntrl:]]{0,199}[*])$'),
	CONSTRAINT valid_must_not_be_empty CHECK (NOT isempty(valid)),
	CONSTRAINT above_must_be_1_to_9007199254740992 CHECK (above BETWEEN 1 AND 9007199254740992),
	CONSTRAINT above_needs_above_input_and_above_output
		CHECK (num_nonnulls(above, above_input, above_output) IN (0, 3)),
	CONSTRAINT above_cache_read_needs_above CHECK (above_cache_read IS NULL OR above IS NOT NULL),
	CONSTRAINT above_cache_write_needs_above CHECK (above_cache_write IS NULL OR above IS NOT NULL),
	CONSTRAINT max_output_must_be_1_to_9007199254740992 CHECK (max_output BETWEEN 1 AND 9007199254740992)
);
DO $$
DECLARE
	price text;
BEGIN
	FOREACH price IN ARRAY '{input,cache_read,cache_write,output,above_input,above_cache_read,'
		'above_cache_write,above_output}'::text[] LOOP
		IF NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conrelid = 'rate_limit_prices'::regclass
			AND c.conname = price || '_must_be_0_to_1000000000') THEN
			EXECUTE format('ALTER TABLE rate_limit_prices ADD CONSTRAINT %I '
				'CHECK (%I BETWEEN 0 AND 1000000000)',
				price || '_must_be_0_to_1000000000', price);
		END IF;
	END LOOP;
END $$;
CALL rate_limit_describe('rate_limit_prices', $$
The prices of language models, for limits in money. Each is for a million tokens, in the currency of your
	choice.
model: The model as requests name it, without regard to case. A name that ends in * is a pattern of the names
	that begin with the rest. A name goes before patterns, and a longer pattern before a shorter one.
valid: When the price holds. If several of a model hold, the one that became valid last does.
input: The price of input.
cache_read: The price of input from a cache. NULL: the price of input.
cache_write: The price of input that is written to a cache. NULL: the price of input.
output: The price of output.
above: A number of tokens of input, from a cache or not. A request with more of them has the
	following prices for all its tokens. NULL: none.
above_input: As input, above that number.
above_cache_read: As cache_read, above that number.
above_cache_write: As cache_write, above that number.
above_output: As output, above that number.
max_output: The largest output of the model. A request holds at most this, whatever it names. NULL: unknown.
comment: A note. Proxies ignore it.
created_at: When the row was created.
updated_at: When the row was last changed.
$$);

CREATE OR REPLACE FUNCTION rate_limit_model(model text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN lower(model COLLATE "C");
COMMENT ON FUNCTION rate_limit_model IS 'The name of a model, as prices have it.';

CREATE OR REPLACE FUNCTION rate_limit_set_model() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.model := rate_limit_model(NEW.model);
	RETURN NEW;
END $$;
COMMENT ON FUNCTION rate_limit_set_model IS 'Sets the name of a model in the form that prices have.';
CREATE OR REPLACE TRIGGER rate_limit_set_model BEFORE INSERT OR UPDATE OF model ON rate_limit_prices
	FOR EACH ROW EXECUTE FUNCTION rate_limit_set_model();

-- An amount of money is a decimal number for people, and counted in millionths.
CREATE OR REPLACE FUNCTION rate_limit_is_money(amount text) RETURNS boolean
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN amount ~ '^[0-9]{1,10}([.][0-9]{1,6}0*)?$' THEN amount::numeric <= 9007199254.740992
	ELSE false END;
COMMENT ON FUNCTION rate_limit_is_money IS 'Whether a text is an amount of money that a limit can have.';

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
COMMENT ON FUNCTION rate_limit_units IS
	'What an amount of a unit counts: an amount of money in millionths, and any other one unchanged.';

-- A document, and the log of changes for people, have amounts of money as decimal numbers.
CREATE OR REPLACE FUNCTION rate_limit_policy_amount(fields jsonb, is_money boolean, inward boolean)
	RETURNS jsonb LANGUAGE sql IMMUTABLE
RETURN CASE WHEN is_money IS NOT TRUE OR coalesce(fields ->> 'events', '') !~ '^[0-9]+([.][0-9]{1,6}0*)?$'
		THEN fields
	ELSE fields || jsonb_build_object('events', CASE WHEN inward
		THEN trim_scale((fields ->> 'events')::numeric * 1000000)
		ELSE rate_limit_decimal((fields ->> 'events')::bigint, 'money') END) END;
COMMENT ON FUNCTION rate_limit_policy_amount IS
	'A row of a document with its amount of money in millionths (inward), or as a decimal number.';
