-- The prices of language models.

-- TABLE rate_limit_prices: The prices of language models, for limits in money. Each is for a million tokens,
-- in the currency of your choice.
--   model: The model as requests name it, without regard to the case of ASCII letters and to blanks at its
--     ends. A name that ends in * is a pattern of the names that begin with the rest. A name goes before
--     patterns, and a longer pattern before a shorter one.
--   valid: When the price holds. If several of a model hold, the one that became valid last does.
--   input: The price of input.
--   cache_read: The price of input from a cache. NULL: the price of input.
--   cache_write: The price of input that is written to a cache. NULL: the price of input.
--   output: The price of output.
--   above: A number of tokens of input, from a cache or not. A request with more of them has the following
--     prices for all its tokens. NULL: none.
--   above_input: As input, above that number.
--   above_cache_read: As cache_read, above that number.
--   above_cache_write: As cache_write, above that number.
--   above_output: As output, above that number.
--   max_output: The largest output of the model. A request holds at most this, whatever it names. NULL:
--     unknown.
--   parts: Prices of further parts of an answer, as PART=PRICE: cache_read, cache_write, cache_write_1h,
--     audio_input, audio_cache_read, audio_output, image_input, image_output; and search and request, which
--     are for one. PART@N=PRICE, also of input and output, holds for all tokens if all input is more than N
--     tokens. The last N that is exceeded does. What has no price costs what its neighbor does:
--     cache_write_1h as cache_write; audio_cache_read as audio_input, or as cache_read if sound has no price;
--     caches, audio_input and image_input as input; audio_output and image_output as output; search and
--     request nothing. A neighbor in the same step goes before a price of a smaller one.
--   tiers: Prices of tiers of service, which the response names: TIER=FACTOR of the prices of tokens, and
--     TIER.PART=PRICE or TIER.PART@N=PRICE in its place, also for neighbors of that part. Any other tier has
--     the prices without one. If the response names no tier, the dearer of standard and the one of the
--     request holds.
--   comment: A note. Proxies ignore it.
--   source: The list that prices import had the row from. NULL: made by hand.
--   created_at: When the row was created.
--   updated_at: When the row was last changed.

-- The name of a model, as prices have it.
CREATE OR REPLACE FUNCTION rate_limit_model(model text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN lower(btrim(model, E' \t\n\x0B\f\r') COLLATE "C");

-- Sets the name of a model in the form that prices have.
CREATE OR REPLACE FUNCTION rate_limit_set_model() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.model := rate_limit_model(NEW.model);
	RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER rate_limit_set_model BEFORE INSERT OR UPDATE OF model ON rate_limit_prices
	FOR EACH ROW EXECUTE FUNCTION rate_limit_set_model();

-- The prices of a row by PART, PART@N, TIER.PART and TIER.PART@N, and the factor of a tier by TIER. with its
-- period.
CREATE OR REPLACE FUNCTION rate_limit_rates(price rate_limit_prices) RETURNS jsonb
	LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT jsonb_object_agg(name, rate) FROM (
		SELECT name || step, rate::text FROM (VALUES ('input', $1.input, NULL),
			('cache_read', $1.cache_read, NULL), ('cache_write', $1.cache_write, NULL),
			('output', $1.output, NULL), ('input', $1.above_input, $1.above),
			('cache_read', $1.above_cache_read, $1.above), ('cache_write', $1.above_cache_write, $1.above),
			('output', $1.above_output, $1.above)) AS c(name, rate, above),
			coalesce('@' || above, '') AS step WHERE rate IS NOT NULL
		UNION ALL SELECT split_part(e, '=', 1), split_part(e, '=', 2) FROM unnest($1.parts) e
		UNION ALL SELECT split_part(e, '=', 1) || CASE WHEN e LIKE '%.%=%' THEN '' ELSE '.' END,
			split_part(e, '=', 2) FROM unnest($1.tiers) e) AS r(name, rate)
$$;
