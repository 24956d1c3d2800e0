-- The totals of the ledger: a sum for a user and one for each of its ancestors, by day, model and kind, and
-- by limit. Invoices and usage add the totals of days that are summed to the rows of all others.
--
-- A day that is summed has no other rows than those in its totals, because upkeep first closes the day: a
-- CHECK that fails refuses each further row. Its lock waits until no transaction is left that has written to
-- the day, however long it runs. Only then the rows are summed. A late settlement fails by the CHECK as by a
-- missing partition. Its proxy then calls rate_limit_ledger_upkeep, which opens the day, and says so in
-- rate_limit_ledger_days before the row comes. So each snapshot that has the row has no summed day. Neither a
-- clock nor the order of commits matters, and a settlement does no more than before.

-- TABLE rate_limit_ledger_days: The days of the ledger that were closed. Whoever deletes rows of the ledger
-- sets summed to false for their days.
--   day: The day.
--   summed: Whether rate_limit_totals has the sums of all rows of the day.
--   open_until: When the day may be closed again, after a late settlement.

-- TABLE rate_limit_totals: The sums of the ledger. rate_limit_invoice adds what they lack.
--   day: The day of the rows.
--   n: The number of the sum in its day.
--   user_id: The user who has sent the requests, or who was above that user when they came. Empty: an unknown
--     sender.
--   ancestors: Who was above the user then, the nearest first.
--   own: Whether the user has sent the requests.
--   settled: The day on which the requests were charged, in UTC.
--   kind: The kind of the rows.
--   model: The model. NULL: none, or a sum by limit.
--   prefix: The limit, rule/RULE/LIMIT, by the names by which it counts. NULL: a sum by model.
--   unit: The unit of a sum by limit.
--   corrects: The quarter of an hour in which the requests were charged that corrections correct. NULL:
--     charges.
--   requests: The number of requests, each for the model that it named. Corrections have none.
--   units: What they have cost on the limit.
--   input: The sum of this column of the ledger.
--   cache_read: The sum of this column.
--   cache_write: The sum of this column.
--   output: The sum of this column.
--   money: The sum of this column.
--   remainder: The sum of this column.
--   cache_write_1h: The sum of this column.
--   audio_input: The sum of this column.
--   audio_cache_read: The sum of this column.
--   audio_output: The sum of this column.
--   image_input: The sum of this column.
--   image_output: The sum of this column.
--   search: The sum of this column.
--   estimated_input: The sum of this column.
--   estimated_output: The sum of this column.
--   estimated_money: The sum of this column.

-- The days of the ledger, and whether they are summed.
CREATE OR REPLACE FUNCTION rate_limit_ledger_parts() RETURNS TABLE (day date, summed boolean)
	LANGUAGE sql STABLE AS $$
	SELECT p.day, coalesce(d.summed, false)
	FROM (SELECT DISTINCT right(c.relname, 8)::date AS day FROM rate_limit_ledgers() l
		JOIN pg_inherits i ON i.inhparent = l::regclass
		JOIN pg_class c ON c.oid = i.inhrelid AND c.relname ~ '_[0-9]{8}$') p
	LEFT JOIN rate_limit_ledger_days d ON d.day = p.day
$$;

-- The days of the ledger with the rows of a time. ledgerSQL writes a row at most 7 days before or after its
-- time.
CREATE OR REPLACE FUNCTION rate_limit_ledger_window("from" timestamptz, until timestamptz)
	RETURNS datemultirange LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN datemultirange(daterange(($1 AT TIME ZONE 'UTC')::date - 8, ($2 AT TIME ZONE 'UTC')::date + 9));

-- A query for the requests in days of the ledger, each once, also on Citus. Each further model of a response
-- is a row without charges, and with its number in lines.
--
-- The shards settle their parts of a request at different times, so that the earliest is the time of the
-- request. All parts have the same numbers, and charges of their own.
CREATE OR REPLACE FUNCTION rate_limit_ledger_source(days datemultirange, condition text)
	RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
	columns CONSTANT text[] := ARRAY(SELECT a.attname FROM pg_attribute a
		WHERE a.attrelid = 'rate_limit_ledger'::regclass AND a.attnum > 0 AND NOT a.attisdropped
		ORDER BY a.attnum);
	parts text := (SELECT string_agg(replace(format('SELECT * FROM %s WHERE (%s) %s', l,
			coalesce((SELECT string_agg(format('day >= %L AND day < %L', lower(r), upper(r)), ' OR ')
				FROM unnest(days) r), 'false'), condition), '%', '%%') || ' %1$s', ' UNION ALL ')
		FROM rate_limit_ledgers() l);
BEGIN
	IF to_regprocedure('rate_limit_shards()') IS NOT NULL THEN
		parts := format('SELECT day, id, ancestors, min(time) AS time, %s, jsonb_agg(charges) AS charges
			FROM (%s) l GROUP BY day, id, ancestors', (SELECT string_agg(format(
				'(array_agg(%1$I))[1] AS %1$I', c), ', ') FROM unnest(columns) c
				WHERE c <> ALL ('{day,id,ancestors,time,charges}')), parts);
	END IF;
	RETURN format('SELECT %s FROM (%s) l UNION ALL
		SELECT p.* FROM (%s) l, jsonb_array_elements(l.lines) WITH ORDINALITY AS a(one, n),
			LATERAL (SELECT (a.one ->> ''money'')::numeric AS m) m,
			jsonb_populate_record(NULL::rate_limit_ledger, a.one || jsonb_build_object(''day'', l.day,
				''id'', l.id, ''time'', l.time, ''user_id'', l.user_id, ''key_id'', l.key_id,
				''ancestors'', l.ancestors, ''kind'', l.kind, ''tier'', l.tier, ''answered'', l.answered,
				''corrects'', l.corrects, ''corrects_time'', l.corrects_time,
				''corrected_by'', l.corrected_by, ''reason'', l.reason,
				''lines'', a.n, ''money'', ceil(m),
				''remainder'', ((m - ceil(m)) * 1000)::smallint)) p',
		(SELECT string_agg('l.' || quote_ident(c), ', ' ORDER BY n) FROM unnest(columns)
			WITH ORDINALITY AS u(c, n)), format(parts, ''), format(parts, 'AND num_nonnulls(audio_input, '
			'audio_cache_read, audio_output, image_input, image_output, search, lines) > 0 '
			'AND lines IS NOT NULL'));
END $$;

-- A query for the rows of rate_limit_totals of a source, of all users, or of a user with all its rows, by
-- model or by limit.
--
-- The inner query has a row for each way in which users are above each other, so that the outer one repeats
-- few rows. Columns that the totals and the ledger have in common are added up. In each zone, a day begins
-- with a quarter of an hour.
CREATE OR REPLACE FUNCTION rate_limit_sums(source text, user_id text, by_limit boolean) RETURNS text
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	own_unit CONSTANT text := '^(rule/.*):\d+$'; -- the names by which a limit counts, one for each unit
	sums text;
	nulls text;
BEGIN
	SELECT string_agg(format('sum(%1$I) AS %1$I', a.attname), ', ' ORDER BY a.attnum),
		string_agg(format('NULL::numeric AS %I', a.attname), ', ' ORDER BY a.attnum) INTO sums, nulls
		FROM pg_attribute a WHERE a.attrelid = 'rate_limit_totals'::regclass AND a.attnum > 13;
	RETURN format('SELECT g.day, row_number() OVER () * %1$s, u.u, u.above, u.own, g.settled, g.kind, '
			'g.model, g.prefix, g.unit, g.corrects, sum(g.requests)::bigint, sum(g.units), %2$s
		FROM (SELECT l.day, %3$s, (l.time AT TIME ZONE ''UTC'')::date AS settled, l.kind, %4$s,
			date_bin(''15 min'', l.corrects_time, ''2000-01-01Z'') AS corrects,
			count(l.charges) FILTER (WHERE l.kind = ''charge'') AS requests, %5$s
			FROM (%6$s) l %7$s GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9) g, %8$s
		GROUP BY 1, 3, 4, 5, 6, 7, 8, 9, 10, 11',
		CASE WHEN by_limit THEN -1 ELSE 1 END, sums,
		CASE WHEN user_id IS NULL THEN 'l.user_id, l.ancestors' ELSE 'NULL AS user_id, NULL AS ancestors' END,
		CASE WHEN by_limit THEN 'NULL AS model, c.prefix, c.unit'
			ELSE 'l.model, NULL AS prefix, NULL AS unit' END,
		CASE WHEN by_limit THEN 'sum(c.units) AS units, ' || nulls
			ELSE 'NULL::numeric AS units, ' || sums END,
		source,
		CASE WHEN by_limit THEN format(', LATERAL (SELECT regexp_replace(c ->> ''prefix'', %L, ''\1'') AS '
			'prefix, c ->> ''unit'' AS unit, max((c ->> ''units'')::numeric) AS units
			FROM jsonb_path_query(l.charges, ''$[*][*]'') c GROUP BY 1, 2) c', own_unit) END,
		CASE WHEN user_id IS NULL
			THEN 'LATERAL (SELECT DISTINCT ON (u) coalesce(u, '''') AS u, g.ancestors[i:] AS above, '
				'i = 1 AS own FROM unnest(array_prepend(g.user_id, g.ancestors)) WITH ORDINALITY AS c(u, i) '
				'WHERE u <> '''' OR i = 1 ORDER BY u, i) u'
			ELSE format('(SELECT %L::text AS u, ''{}''::text[] AS above, false AS own) u', user_id) END);
END $$;

-- Closes a day of the ledger, or sums a day that is closed, unless another session uses it.
--
-- See rate_limit_ledger_drop for the settings. The SHARE lock waits for whoever forgets a person, and keeps
-- the day from being opened.
CREATE OR REPLACE FUNCTION rate_limit_sum_day(one date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	parts CONSTANT regclass[] := array_remove(ARRAY(SELECT to_regclass(l || to_char(one, '_YYYYMMDD'))
		FROM rate_limit_ledgers() l), NULL);
	part regclass;
	source text;
BEGIN
	SET LOCAL citus.propagate_set_commands = 'local';
	SET LOCAL lock_timeout = '100ms';
	FOR part IN SELECT p FROM unnest(parts) p WHERE NOT rate_limit_is_closed(p) LOOP
		EXECUTE format('ALTER TABLE %s ADD CONSTRAINT day_is_summed CHECK (current_setting('
			'''pg_ratelimit.forgets'', true) IS NOT DISTINCT FROM ''on'') NOT VALID', part);
	END LOOP;
	IF FOUND THEN
		RETURN true;
	END IF;
	FOREACH part IN ARRAY parts LOOP
		EXECUTE format('LOCK TABLE %s IN SHARE MODE', part);
	END LOOP;
	IF NOT (SELECT bool_and(rate_limit_is_closed(p)) FROM unnest(parts) p) THEN
		RETURN true;
	END IF;
	DELETE FROM rate_limit_totals t WHERE t.day = one;
	source := rate_limit_ledger_source(datemultirange(daterange(one, one + 1)), '');
	EXECUTE 'INSERT INTO rate_limit_totals ' || rate_limit_sums(source, NULL, false);
	EXECUTE 'INSERT INTO rate_limit_totals ' || rate_limit_sums(source, NULL, true);
	INSERT INTO rate_limit_ledger_days (day, summed) VALUES (one, true)
		ON CONFLICT (day) DO UPDATE SET summed = true;
	RETURN true;
EXCEPTION WHEN lock_not_available THEN
	RETURN false;
END $$;

-- Whether a partition of the ledger is closed for new rows.
CREATE OR REPLACE FUNCTION rate_limit_is_closed(part regclass) RETURNS boolean LANGUAGE sql STABLE AS $$
	SELECT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = $1 AND k.conname = 'day_is_summed')
$$;

-- Closes or sums the latest day of the ledger that ended an hour ago or earlier, and returns whether it did.
-- A proxy runs it each hour until it returns false.
CREATE OR REPLACE FUNCTION rate_limit_totals_upkeep() RETURNS boolean LANGUAGE plpgsql
	SECURITY DEFINER SET jit = off SET work_mem = '64MB' AS $$
DECLARE
	one date;
BEGIN
	IF pg_try_advisory_xact_lock(1885827696) THEN
		SELECT max(p.day) INTO one FROM rate_limit_ledger_parts() p
			LEFT JOIN rate_limit_ledger_days d ON d.day = p.day
			WHERE NOT p.summed AND p.day < ((now() - interval '1 hour') AT TIME ZONE 'UTC')::date
				AND (d.open_until BETWEEN now() AND now() + interval '1 hour') IS NOT TRUE;
	END IF;
	RETURN one IS NOT NULL AND rate_limit_sum_day(one);
END $$;
