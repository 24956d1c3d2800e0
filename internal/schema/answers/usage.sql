-- The counters, and the used amount of each limit. Views, commands and the page query these functions.
--
-- rate_limit_counters is a function, because a view on the tables of counters would prevent every change of
-- their columns, even by a program with an older schema. Postgres inlines the body, so that any condition,
-- even of a join, finds its counters by an index. For that, the function must not have a search_path of its
-- own, and the parts of the UNION must not have conditions. If the counts are in shards, shards.sql
-- creates the function with another body. Package algorithm defines which slots count, and the generator
-- puts its text here.
DO $do$ BEGIN
	IF to_regprocedure('rate_limit_shards()') IS NULL THEN
		EXECUTE replace(replace($sql$
-- The counters of a prefix in the table of durable or of other counters. keys selects some of them. NULL:
-- all. slots is the number of requests in flight, and held the tokens that running requests hold.
CREATE OR REPLACE FUNCTION rate_limit_counters(prefix text, durable boolean, keys text[] DEFAULT NULL)
RETURNS TABLE (key text, count bigint, prev_count bigint, window_start timestamptz, tokens float8,
	last_refill timestamptz,
	remainder bigint, hits timestamptz[], slots bigint, held bigint,
	expires_at timestamptz) LANGUAGE sql STABLE AS $$
	SELECT c.key, c.count, c.prev_count, c.window_start, c.tokens, c.last_refill, c.remainder, c.hits,
		{live_slots}, {live_held}, c.expires_at
	FROM (
		SELECT false AS durable, e.prefix, e.key, e.count::bigint, e.prev_count::bigint, e.window_start,
			e.tokens::float8, e.last_refill,
			e.remainder, e.hits, e.slots, e.held, e.expires_at FROM {schema}.rate_limit_ephemeral e
		UNION ALL
		SELECT true, d.prefix, d.key, d.count::bigint, d.prev_count::bigint, d.window_start,
			d.tokens::float8, d.last_refill,
			d.remainder, d.hits, d.slots, d.held, d.expires_at FROM {schema}.rate_limit_durable d
	) c WHERE c.prefix = $1 AND c.durable = $2 AND ($3 IS NULL OR c.key = ANY ($3))
$$;
$sql$, '{processes}', '{schema}.rate_limit_processes'), '{schema}', quote_ident(current_schema()));
	END IF;
END $do$;

-- The key of a user's counters, as proxies write it.
CREATE OR REPLACE FUNCTION rate_limit_counter_key(user_id text) RETURNS text
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN regexp_replace(replace(replace(user_id, '%', '%25'), ' ', '%20'), '^ip:', 'ip%3A');

-- The forms of texts in the keys of counters: unchanged, and after the number of an alternative, as in
-- 2|text.
CREATE OR REPLACE FUNCTION rate_limit_key_forms(texts text[]) RETURNS text[]
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ARRAY(SELECT n || t FROM unnest(texts) AS t, unnest('{"",1|,2|,3|,4|,5|,6|,7|,8|,9|}'::text[]) AS n);

-- The forms of a key in the tables of counters: the key, as lists show it, or its digest.
CREATE OR REPLACE FUNCTION rate_limit_stored_keys(key text) RETURNS text[]
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN array_remove(ARRAY[key, 'sha256:' || encode(sha256(convert_to(key, 'UTF8')), 'hex'),
	substring(key FROM '^[1-9][|]') || 'sha256:' || encode(sha256(convert_to(substr(key, 3), 'UTF8')),
		'hex')],
	NULL);

-- The tables of counters, each with the table of the processes that hold slots or units of its counters.
CREATE OR REPLACE FUNCTION rate_limit_counter_tables() RETURNS TABLE (counters regclass, processes regclass)
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	places text[] := '{""}';
BEGIN
	IF to_regprocedure('rate_limit_shards()') IS NOT NULL THEN
		places := ARRAY(SELECT quote_ident(p.schema) || '.' FROM rate_limit_shards() p ORDER BY p.shard);
	END IF;
	RETURN QUERY SELECT (s.place || t.name)::regclass, (s.place || 'rate_limit_processes')::regclass
		FROM unnest(places) AS s(place),
			unnest('{rate_limit_durable,rate_limit_ephemeral}'::text[]) AS t(name);
END $$;

-- Deletes counters of a table, except counters with slots that running requests hold. Returns the number of
-- deleted counters.
--
-- The rows are locked in the same order as by proxies, so no deadlock is possible.
CREATE OR REPLACE FUNCTION rate_limit_delete_counters(counters regclass, processes regclass, prefixes text[],
	keys text[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	deleted bigint;
BEGIN
	EXECUTE format(replace($sql$WITH locked AS MATERIALIZED (
			SELECT c.prefix, c.key FROM %1$s c JOIN unnest($1, $2) AS u(prefix, key) USING (prefix, key)
				ORDER BY c.prefix COLLATE "C", c.key COLLATE "C" FOR UPDATE OF c)
		DELETE FROM %1$s c USING locked l WHERE c.prefix = l.prefix AND c.key = l.key
			AND NOT {is_live}$sql$, '{processes}', '%2$s'), $1, $2) USING $3, $4;
	GET DIAGNOSTICS deleted = ROW_COUNT;
	RETURN deleted;
END $$;

-- The prefix of the counters of rule/RULE/LIMIT, which has the names by which the rule and the limit count.
-- Any other prefix is returned unchanged.
CREATE OR REPLACE FUNCTION rate_limit_counted_prefix(prefix text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF starts_with($1, 'rule/') AND rate_limit_may_read('rules') THEN
		RETURN coalesce((SELECT rate_limit_prefix(coalesce(r.counted_as, r.name), coalesce(l.counted_as,
				split_part($1, '/', 3)))
			FROM rate_limit_rules r LEFT JOIN rate_limit_rule_limits l
				ON (l.rule, l.name) = (r.name, split_part($1, '/', 3))
			WHERE r.name = split_part($1, '/', 2)), $1);
	END IF;
	RETURN $1;
END $$;

-- Resets the counters of a prefix as it is stored, and of keys as they are stored, for rate_limit_reset.
--
-- A window of the calendar in a deleted row would begin before the reset again, and rate_limit_correct would
-- change its counter by what the reset has cleared. So durable rows with a window stay. All is done as the
-- owner, because Citus refuses a transaction that changes a shard as two roles.
CREATE OR REPLACE FUNCTION rate_limit_reset_counters(prefix text, keys text[]) RETURNS bigint
	LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	t record;
	found record;
	gone bigint;
	reset bigint := 0;
BEGIN
	FOR t IN SELECT * FROM rate_limit_counter_tables() LOOP
		EXECUTE format('SELECT array_agg(l.prefix) FILTER (WHERE NOT l.stays) AS prefixes,
				array_agg(l.key) FILTER (WHERE NOT l.stays) AS keys, count(*) FILTER (WHERE l.stays) AS stay,
				(array_agg(l.slots) FILTER (WHERE l.slots <> ''{}''))[1:1] AS slots
			FROM (SELECT c.*, $3 AND c.window_start IS NOT NULL AND c.slots IS NULL AS stays FROM %s c
				WHERE c.prefix = $1 AND c.key = ANY ($2) ORDER BY c.key COLLATE "C" FOR UPDATE) l',
			t.counters) INTO found USING $1, $2, t.counters::text LIKE '%durable';
		IF found.stay > 0 THEN
			EXECUTE format('UPDATE %s c SET window_start = $3, count = 0, prev_count = c.prev_count * 0,
				remainder = NULL, held = NULL, tokens = NULL, last_refill = NULL, hits = NULL
				WHERE c.prefix = $1 AND c.key = ANY ($2) AND c.window_start IS NOT NULL AND c.slots IS NULL',
				t.counters) USING $1, $2, clock_timestamp();
		END IF;
		gone := rate_limit_delete_counters(t.counters, t.processes, found.prefixes, found.keys);
		reset := reset + found.stay + gone;
		IF gone < cardinality(found.keys) THEN
			RAISE EXCEPTION
				'the counter is of an in_flight limit, and running requests hold its slots: a reset would '
				'let more requests run than the limit. A slot is free when its request ends, or 10 seconds '
				'after its process was lost. To free the slots of a lost process now, run: UPDATE '
				'% SET seen = ''-infinity'' WHERE process IN (%)', t.processes,
				(SELECT string_agg(DISTINCT (s >> 32)::text, ', ')
					FROM unnest(found.slots) AS s WHERE s > 0)
				USING ERRCODE = 'object_in_use';
		END IF;
	END LOOP;
	RETURN reset;
END $$;

-- Deletes the counters of a prefix and a key, or sets them to 0, so that the full quota is available again.
-- Returns their number. It fails while running requests hold slots of a counter.
CREATE OR REPLACE FUNCTION rate_limit_reset(prefix text, key text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	RETURN rate_limit_reset_counters(rate_limit_counted_prefix($1), rate_limit_stored_keys($2));
END $$;

-- The units of a limit that a counter has used at a time. span is the window of the limit in microseconds;
-- NULL for a calendar window and for in_flight. resets_at is the end of the window; for sliding_log, when the
-- oldest request leaves the window; for token_bucket and gcra, when the full quota is available again. NULL:
-- nothing is used, or the time is unknown.
--
-- Package algorithm defines all terms, and TestUsedAndLeftAddUpToTheQuota compares both: used is the quota
-- minus the units that Peek returns as free. A fraction of a unit admits no request, so used is rounded up.
-- Sums that may exceed a bigint have the type numeric. A row that is too far in the future counts as a new
-- row.
CREATE OR REPLACE FUNCTION rate_limit_usage_of(algorithm text, events bigint, burst bigint, span bigint,
	count bigint, prev_count bigint,
	window_start timestamptz, tokens float8, last_refill timestamptz, remainder bigint,
		hits timestamptz[], slots bigint,
	expires_at timestamptz, at timestamptz DEFAULT now())
RETURNS TABLE (used bigint, resets_at timestamptz) LANGUAGE sql STABLE PARALLEL SAFE BEGIN ATOMIC
	SELECT greatest(u.used, 0)::bigint, CASE WHEN u.used > 0 THEN CASE algorithm
			WHEN 'fixed_window' THEN coalesce(window_start + span * interval '1 us', expires_at)
			WHEN 'sliding_window' THEN window_start
				+ CASE WHEN t.passed < span THEN span ELSE 2 * span END * interval '1 us'
			WHEN 'sliding_log' THEN (SELECT min(hit) FROM unnest(hits) AS hit WHERE hit > t.oldest)
				+ span * interval '1 us'
			-- The end of a request in flight is unknown.
			WHEN 'in_flight' THEN NULL
			ELSE last_refill + least(CASE WHEN t.evenly
				THEN div((t.quota - b.had) * span + b.part + events - 1, events)
				ELSE (b.windows + ceil(u.used / events)) * span END, 2305843009213693952)::float8
				* interval '1 us' END END
	FROM (
		SELECT coalesce(burst, events) AS quota, (algorithm = 'gcra' OR burst < events) IS TRUE AS evenly,
			10000000 AS slack, (date_part('epoch', at - window_start) * 1000000)::bigint AS passed,
			(date_part('epoch', at - last_refill) * 1000000)::bigint AS drained,
			greatest(at, hits[cardinality(hits)]) - span * interval '1 us' AS oldest
	) AS t, LATERAL (
		SELECT greatest(0, t.drained) / span AS windows, least(coalesce(remainder, 0), events - 1) AS part,
			floor(greatest(-least(t.quota, 4611686018427387904 / span - t.quota),
				least(t.quota, tokens)))::bigint::numeric AS had
	) AS b, LATERAL (SELECT CASE
		-- a window of the calendar
		WHEN algorithm = 'fixed_window' AND span IS NULL THEN CASE WHEN expires_at > at
			AND window_start - at <= expires_at - window_start + t.slack * interval '1 us'
			THEN count END
		WHEN algorithm = 'fixed_window' THEN
			CASE WHEN t.passed < span AND t.passed >= -span - t.slack THEN count END
		-- in the window of the row
		WHEN algorithm = 'sliding_window' AND t.passed < span THEN
			CASE WHEN t.passed >= -span - t.slack THEN greatest(0, count) + div(greatest(0,
				prev_count)::numeric * (span - greatest(0, t.passed)) + span - 1, span) END
		-- in the window after the window of the row
		WHEN algorithm = 'sliding_window' THEN
			CASE WHEN t.passed < 2 * span
				THEN div(greatest(0, count)::numeric * (2 * span - t.passed) + span - 1, span) END
		WHEN algorithm = 'sliding_log' THEN CASE WHEN hits[cardinality(hits)] <= at + (span + t.slack)
			* interval '1 us'
				THEN (SELECT count(*) FROM unnest(hits) AS hit WHERE hit > t.oldest) END
		WHEN algorithm = 'in_flight' THEN slots
		WHEN events = 0 OR events IS NULL THEN NULL
		-- refilled evenly
		WHEN t.evenly THEN
			CASE WHEN t.drained >= -div(t.quota::numeric * span + events - 1, events) - t.slack
				THEN t.quota - b.had
					- div(greatest(0, greatest(0, t.drained) * events::numeric - b.part), span) END
		-- refilled by whole windows
		WHEN t.drained >= -least(ceil(t.quota::numeric / events) * span, 3155760000000000) - t.slack
			THEN t.quota - floor(least(t.quota, tokens + b.windows::float8 * events))::bigint::numeric
		-- With OFFSET, Postgres computes used only once.
		END::numeric AS used OFFSET 0) AS u;
END;
