-- Corrections of the ledger. A correction is a row of today, so that days that are summed stay as they are.
-- On Citus it is in the first ledger.

-- The requests that were charged from a time on, and came or were charged before another, with what each of
-- their lines costs in billionths by the last correction. parts has the columns of the ledger in the order of
-- prices, and then 1 for the request. model selects those with a line of a model, or of the models of a
-- pattern. With ids, the first line of a request has its charges.
CREATE OR REPLACE FUNCTION rate_limit_bills("from" timestamptz, until timestamptz, model text DEFAULT NULL,
	ids uuid[] DEFAULT NULL)
RETURNS TABLE (id uuid, "time" timestamptz, user_id text, key_id bigint, ancestors text[], tier text,
	lines jsonb) LANGUAGE plpgsql STABLE AS $$
DECLARE
	days CONSTANT datemultirange := rate_limit_ledger_window("from", greatest(until, "from"));
	named CONSTANT text := rate_limit_model(model);
	among CONSTANT text := CASE WHEN ids IS NOT NULL THEN format(' = ANY (%L::uuid[])', ids) END;
	whole CONSTANT boolean := ids IS NOT NULL;
BEGIN
	IF until <= "from" THEN
		RAISE invalid_parameter_value USING MESSAGE = format('until: %s: must be after from, %s',
			to_json(until), to_json("from"));
	END IF;
	RETURN QUERY EXECUTE format('WITH b AS (
			SELECT b.*, CASE WHEN b.charges IS NULL THEN b.lines::bigint ELSE 0 END AS n,
				b.money * 1000::numeric + coalesce(b.remainder, 0) AS billionths FROM (%s) b
			WHERE b.time >= $1 AND least(b.time, rate_limit_began(b.id)) < $2 AND b.input IS NOT NULL
		), c AS (
			SELECT c.corrects AS id, CASE WHEN c.charges IS NULL THEN c.lines::bigint ELSE 0 END AS n,
				sum(c.money * 1000::numeric + coalesce(c.remainder, 0)) AS billionths
			FROM (%s) c GROUP BY 1, 2
		)
		SELECT b.id, b.time, b.user_id, b.key_id, b.ancestors, b.tier, jsonb_agg(jsonb_build_object(
			''model'', b.model, ''billionths'', CASE WHEN c.billionths IS NULL THEN b.billionths
				ELSE coalesce(b.billionths, 0) + c.billionths END, ''parts'',
			ARRAY[b.input, b.cache_read, b.cache_write, b.cache_write_1h, b.output, b.audio_input,
				b.audio_cache_read, b.audio_output, b.image_input, b.image_output, b.search,
				CASE n WHEN 0 THEN 1 END], ''charges'', CASE WHEN $4 THEN b.charges END) ORDER BY n)
		FROM b LEFT JOIN c USING (id, n)
		GROUP BY b.day, b.id, b.time, b.user_id, b.key_id, b.ancestors, b.tier
		HAVING $3 IS NULL OR bool_or(CASE WHEN $3 LIKE ''%%*''
			THEN starts_with(rate_limit_model(b.model), left($3, -1))
			ELSE rate_limit_model(b.model) = $3 END)',
		rate_limit_ledger_source(days, concat('AND kind = ''charge''', ' AND id' || among)),
		rate_limit_ledger_source(datemultirange(daterange(lower(days), 'infinity')),
			concat('AND corrects', coalesce(among, ' IS NOT NULL')))) USING "from", until, named, whole;
END $$;

-- Changes durable counters by charges that cost more or less than they did, if the window of a counter has
-- the charge, and not below 0. changes is a list of objects with the time of a charge, billionths, prefix,
-- key and durable.
--
-- The rows are locked in the same order as by proxies, see sortGroups in package engine. Without the policy,
-- that order is not known, and whoever has waited for too long tries again. The second statement sees the
-- rows as they were when they were locked. Package algorithm defines the columns. Other counters than durable
-- ones may lack a charge after a crash.
CREATE OR REPLACE FUNCTION rate_limit_correct_counters(changes jsonb) RETURNS void LANGUAGE plpgsql
	SET lock_timeout = '200ms' AS $$
DECLARE
	moved CONSTANT text := 'jsonb_to_recordset($1) x("time" timestamptz, billionths numeric, prefix text, '
		'key text, durable boolean)';
	prefixes text[];
	keys text[];
	kinds jsonb;
	place regclass;
BEGIN
	SELECT array_agg(k.prefix), array_agg(k.key) INTO prefixes, keys FROM (SELECT DISTINCT x.prefix, x.key
		FROM jsonb_to_recordset($1) x(prefix text, key text, durable boolean) WHERE x.durable) k;
	IF to_regclass('rate_limit_rule_limits') IS NOT NULL THEN
		kinds := (SELECT jsonb_object_agg(rate_limit_counted_prefix(concat_ws('/', 'rule', l.rule, l.name)),
				CASE WHEN l.calendar IS NULL THEN l.algorithm ELSE 'calendar' END)
			FROM rate_limit_rule_limits l WHERE l.unit = 'money');
	END IF;
	FOR place IN SELECT c.counters FROM rate_limit_counter_tables() c WHERE c.counters::text LIKE '%durable'
	LOOP
		EXECUTE format('SELECT count(*) FROM (SELECT 1
				FROM %s c JOIN unnest($1, $2) AS u(prefix, key) USING (prefix, key)
			ORDER BY $3 ->> c.prefix COLLATE "C", c.prefix COLLATE "C", c.key COLLATE "C" FOR UPDATE OF c) l',
			place) USING prefixes, keys, kinds;
		EXECUTE format('UPDATE %1$s c SET count = ceil(n.now * 0.001),
				remainder = nullif(n.now - ceil(n.now * 0.001) * 1000, 0), prev_count = n.before
			FROM (SELECT c.prefix, c.key, greatest(0, greatest(0, c.count) * 1000::numeric
					+ coalesce(c.remainder, 0) + coalesce(sum(x.billionths)
						FILTER (WHERE x.time >= c.window_start), 0)) AS now,
				greatest(c.prev_count * 0, c.prev_count + ceil(coalesce(sum(x.billionths)
					FILTER (WHERE x.time < c.window_start), 0) * 0.001)) AS before
				FROM %1$s c JOIN %2$s USING (prefix, key)
				WHERE x.durable AND c.expires_at > now() AND (x.time >= c.window_start
					OR c.prev_count > 0 AND x.time >= c.window_start - (c.expires_at - c.window_start) / 2)
				GROUP BY c.prefix, c.key) n
			WHERE c.prefix = n.prefix AND c.key = n.key', place, moved) USING $1;
	END LOOP;
END $$;

-- Makes requests cost what bills say, with a row of the ledger of today for each that costs more or less now,
-- and returns the number of these rows. Durable counters of limits in money change if their window has the
-- charge of the request. bills is a list of objects with the id and the time of a request, and for each of
-- its lines, as of rate_limit_bills, the price in billionths and the row of prices: {"id", "time", "lines":
-- [{"billionths", "price", "price_valid"}]}. A line without billionths keeps its price.
--
-- What a request costs is read under a lock that all corrections take, so that none counts twice. Whoever
-- forgets a person takes it, too, and then also finds the corrections.
CREATE OR REPLACE FUNCTION rate_limit_correct(bills jsonb, reason text) RETURNS bigint
	LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	today CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
	corrected bigint;
	moved jsonb;
BEGIN
	IF coalesce(btrim(reason), '') = '' THEN
		RAISE invalid_parameter_value USING MESSAGE = 'reason: must be given';
	END IF;
	PERFORM pg_advisory_xact_lock(1885827697);
	IF to_regclass('rate_limit_ledger' || to_char(today, '_YYYYMMDD')) IS NULL THEN
		PERFORM rate_limit_ledger_upkeep();
	END IF;
	WITH made AS (INSERT INTO rate_limit_ledger (day, id, time, user_id, key_id, ancestors, tier, charges,
			kind, corrects, corrects_time, corrected_by, reason, model, money, remainder, price, price_valid,
			lines)
	SELECT today, gen_random_uuid(), now(), o.user_id, o.key_id, o.ancestors, o.tier, coalesce((
			SELECT jsonb_agg(c || jsonb_build_object('units', (SELECT sum(m) FROM unnest(d.all) m) * 0.001))
			FROM jsonb_path_query(o.lines -> 0 -> 'charges', '$[*][*] ? (@.unit == "money")') c), '[]'),
		'correction', o.id, o.time, rate_limit_caller(), $2, o.lines -> 0 ->> 'model', ceil(d.all[1] * 0.001),
		nullif(d.all[1] - ceil(d.all[1] * 0.001) * 1000, 0), b.lines -> 0 ->> 'price',
		(b.lines -> 0 ->> 'price_valid')::tstzrange, d.further
	FROM jsonb_to_recordset($1) AS b(id uuid, "time" timestamptz, lines jsonb)
	JOIN (SELECT min(t.time) AS first, max(t.time) AS last, array_agg(t.id) AS ids
		FROM jsonb_to_recordset($1) AS t(id uuid, "time" timestamptz)) r ON true
	JOIN LATERAL rate_limit_bills(r.first, r.last + interval '1 us', ids => r.ids) o ON o.id = b.id
	CROSS JOIN LATERAL (
		SELECT array_agg(x.more ORDER BY x.n) AS all, jsonb_agg(jsonb_build_object('model', x.old ->> 'model',
			'money', x.more * 0.001, 'price', x.new -> 'price', 'price_valid', x.new -> 'price_valid')
			ORDER BY x.n) FILTER (WHERE x.n > 1) AS further
		FROM (SELECT p.n, p.old, n.new, (n.new ->> 'billionths')::numeric
				- coalesce((p.old ->> 'billionths')::numeric, 0) AS more
			FROM jsonb_array_elements(o.lines) WITH ORDINALITY AS p(old, n)
			LEFT JOIN jsonb_array_elements(b.lines) WITH ORDINALITY AS n(new, n) ON n.n = p.n) x
	) d
	WHERE 0 <> ANY (d.all) RETURNING id, corrects_time, charges)
	SELECT count(DISTINCT m.id), jsonb_agg(c || jsonb_build_object('time', m.corrects_time, 'billionths',
		(c ->> 'units')::numeric * 1000)) FILTER (WHERE c ->> 'key' IS NOT NULL) INTO corrected, moved
		FROM made m LEFT JOIN LATERAL jsonb_array_elements(m.charges) c ON true;
	PERFORM rate_limit_correct_counters(moved) WHERE moved IS NOT NULL;
	RETURN corrected;
END $$;
