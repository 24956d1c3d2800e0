-- Functions that change prices.

-- The prices in force, by model, as of rate_limit_rates.
CREATE OR REPLACE FUNCTION rate_limit_rates_in_force() RETURNS jsonb LANGUAGE sql STABLE AS $$
	SELECT coalesce(jsonb_object_agg(p.model, rate_limit_rates(p)), '{}') FROM (
		SELECT DISTINCT ON (model) * FROM rate_limit_prices WHERE valid @> now()
		ORDER BY model, lower(valid) DESC NULLS LAST) AS p
$$;

-- What is wrong with prices, as of rate_limit_rates, if one has more than ten times, or less than a tenth of,
-- the price of this name before. NULL: nothing.
CREATE OR REPLACE FUNCTION rate_limit_price_fault(before jsonb, after jsonb) RETURNS text
	LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT format('%s: %s: must differ by no more than ten times from %s, the price in force, unless it is '
			'forced: --force, or in SQL force => true', rtrim(a.key, '.'),
			trim_scale(n.now), trim_scale(n.was))
		FROM jsonb_each_text(after) a,
			LATERAL (SELECT a.value::numeric AS now, (before ->> a.key)::numeric AS was) n
		WHERE n.now > 10 * n.was OR n.was > 10 * n.now ORDER BY length(a.key), a.key LIMIT 1
$$;

-- Creates or changes the price of a model that holds in a time, by default the one in force: for a million
-- tokens of each kind. A new price needs input and output, and a warning names what it lacks of the one in
-- force. parts has the prices of other parts and of steps, and tiers the prices of tiers of service, as in
-- the table. force permits a price that differs by more than ten times from the one in force.
CREATE OR REPLACE FUNCTION rate_limit_price(model text, input numeric DEFAULT NULL,
	output numeric DEFAULT NULL, cache_read numeric DEFAULT NULL, cache_write numeric DEFAULT NULL,
	above bigint DEFAULT NULL, above_input numeric DEFAULT NULL, above_output numeric DEFAULT NULL,
	above_cache_read numeric DEFAULT NULL, above_cache_write numeric DEFAULT NULL,
	max_output bigint DEFAULT NULL, valid tstzrange DEFAULT NULL, comment text DEFAULT NULL,
	reset text[] DEFAULT NULL, parts text[] DEFAULT NULL, tiers text[] DEFAULT NULL,
	force boolean DEFAULT false) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	fields CONSTANT jsonb := (SELECT to_jsonb(f) FROM (SELECT rate_limit_model($1) AS model,
		coalesce($12, (SELECT p.valid FROM rate_limit_prices p WHERE p.model = rate_limit_model($1)
			AND p.valid @> now() ORDER BY lower(p.valid) DESC NULLS LAST LIMIT 1), '(,)') AS valid,
		input, output, cache_read, cache_write, above, above_input, above_output, above_cache_read,
		above_cache_write, max_output, comment, parts, tiers, NULL AS source) AS f);
	before CONSTANT jsonb := rate_limit_rates_in_force() -> (fields ->> 'model');
	result CONSTANT text := rate_limit_set('rate_limit_prices', '{model,valid}', fields, reset || '{source}');
	fault text;
	lacking text;
BEGIN
	SELECT rate_limit_price_fault(before, r), (SELECT string_agg(rtrim(b.key, '.') || '=' || b.value, ', '
			ORDER BY b.key) FROM jsonb_each_text(before) b WHERE NOT r ? b.key)
		INTO fault, lacking FROM rate_limit_prices p, rate_limit_rates(p) r
		WHERE (p.model, p.valid) = (fields ->> 'model', (fields ->> 'valid')::tstzrange);
	PERFORM rate_limit_refuse(fault) WHERE force IS NOT TRUE;
	IF result = 'created' AND lacking IS NOT NULL THEN
		RAISE WARNING 'price %: lacks % of the price in force: these parts cost what their neighbors do',
			fields -> 'model', lacking USING ERRCODE = 'RL003';
	END IF;
	RETURN result;
END $$;

-- Deletes the prices of a model, or the one that holds in a time, and returns whether there was one.
CREATE OR REPLACE FUNCTION rate_limit_delete_price(model text, valid tstzrange DEFAULT NULL) RETURNS boolean
	LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM rate_limit_prices p WHERE p.model = rate_limit_model($1) AND ($2 IS NULL OR p.valid = $2);
	RETURN FOUND;
END $$;

-- Makes the prices of a list hold from now on, and returns the differences to those in force: a price that is
-- created or changed, or that is kept, because its row was made by hand, unless replace. A row in force that
-- differs ends. source names the list. force permits a price that differs by more than ten times from the one
-- in force. dry_run checks everything and changes nothing.
--
-- A row that was made by hand can also be a pattern, but * is for models that have no other row.
CREATE OR REPLACE FUNCTION rate_limit_import_prices(list jsonb, source text, replace boolean DEFAULT false,
	force boolean DEFAULT false, dry_run boolean DEFAULT false)
	RETURNS TABLE (model text, what text, price text, before text, after text) LANGUAGE plpgsql AS $$
DECLARE
	r record;
	ended rate_limit_prices[];
	made rate_limit_prices[];
	fault text;
	first text;
BEGIN
	LOCK TABLE rate_limit_prices IN SHARE ROW EXCLUSIVE MODE;
	FOR r IN WITH held AS MATERIALIZED (
			SELECT DISTINCT ON (p.model) p.model, p.source, p AS row FROM rate_limit_prices p
			WHERE p.valid @> now() ORDER BY p.model, lower(p.valid) DESC NULLS LAST
		), patterns AS MATERIALIZED (
			SELECT h.model, h.row FROM held h WHERE h.model LIKE '_%*' AND h.source IS NULL AND NOT $3
		) SELECT m.name, n AS row, h.row AS old, coalesce(h.row, p.row) AS held,
			coalesce(h.model, p.model) IS NULL AS is_new,
			p.model IS NOT NULL OR h.model IS NOT NULL AND h.source IS NULL AND NOT $3 AS is_kept
		FROM jsonb_populate_recordset(NULL::rate_limit_prices, list) n
		CROSS JOIN LATERAL (SELECT rate_limit_model(n.model) AS name) m
		LEFT JOIN held h ON h.model = m.name
		LEFT JOIN LATERAL (SELECT * FROM patterns p WHERE h.model IS NULL
			AND starts_with(m.name, rtrim(p.model, '*')) ORDER BY length(p.model) DESC LIMIT 1) p ON true
		ORDER BY m.name
	LOOP
		fault := CASE WHEN NOT $4 AND NOT r.is_kept
			THEN rate_limit_price_fault(rate_limit_rates(r.old), rate_limit_rates(r.row)) END;
		RETURN QUERY WITH d AS (
			SELECT rtrim(name, '.') AS name, h.value AS was, l.value AS is
			FROM jsonb_each_text(rate_limit_rates(r.held)
				|| jsonb_strip_nulls(jsonb_build_object('max_output', (r.held).max_output))) h(name, value)
			FULL JOIN jsonb_each_text(rate_limit_rates(r.row)
				|| jsonb_strip_nulls(jsonb_build_object('max_output', (r.row).max_output))) l(name, value)
				USING (name)
			WHERE h.value::numeric IS DISTINCT FROM l.value::numeric
		) SELECT r.name, CASE WHEN r.is_kept THEN 'kept' WHEN fault IS NOT NULL THEN 'needs force'
			ELSE 'changed' END, d.name, trim_scale(d.was::numeric)::text, trim_scale(d.is::numeric)::text
		FROM d WHERE NOT r.is_new
		UNION ALL SELECT r.name, 'created', NULL, NULL, string_agg(concat(d.name, '=', d.is), ' ' ORDER BY
			length(d.name), d.name) FROM d WHERE r.is_new HAVING count(*) > 0;
		CONTINUE WHEN NOT FOUND OR r.is_kept;
		first := coalesce(first, 'price "' || r.name || '": ' || fault);
		ended := array_append(ended, r.old);
		made := array_append(made, r.row);
	END LOOP;
	PERFORM rate_limit_refuse(first) WHERE NOT dry_run;
	BEGIN
		UPDATE rate_limit_prices p SET valid = p.valid * tstzrange(NULL, now()) FROM unnest(ended) e
			WHERE (p.model, p.valid) = (e.model, e.valid);
		INSERT INTO rate_limit_prices (model, valid, input, cache_read, cache_write, output, max_output,
				parts, tiers, comment, source)
			SELECT m.model, CASE WHEN EXISTS (SELECT FROM rate_limit_prices p
					WHERE p.model = rate_limit_model(m.model)) THEN tstzrange(now(), NULL) ELSE '(,)' END,
				m.input, m.cache_read, m.cache_write, m.output, m.max_output, m.parts, m.tiers, m.comment, $2
			FROM unnest(made) m;
		IF dry_run THEN
			RAISE SQLSTATE 'RL000';
		END IF;
	EXCEPTION WHEN SQLSTATE 'RL000' THEN
		NULL; -- The exception undoes the changes of the block.
	END;
END $$;
