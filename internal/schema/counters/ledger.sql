-- The partitions of the ledger, and what reads it.

CREATE TABLE IF NOT EXISTS rate_limit_ledger_retention (
	keep interval PRIMARY KEY CONSTRAINT keep_must_be_1_day_or_more CHECK (keep >= interval '1 day'),
	noticed_at timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO rate_limit_ledger_retention SELECT '400 days'
	WHERE NOT EXISTS (SELECT FROM rate_limit_ledger_retention);
COMMENT ON TABLE rate_limit_ledger_retention IS
	'The retention of the ledger: one row. To change it: UPDATE rate_limit_ledger_retention SET keep = '
	'''2 years''.';
COMMENT ON COLUMN rate_limit_ledger_retention.keep IS 'Days that ended longer ago are dropped.';
COMMENT ON COLUMN rate_limit_ledger_retention.noticed_at IS
	'When rate_limit_notice_upkeep has run.';

CREATE OR REPLACE FUNCTION rate_limit_ledgers() RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN QUERY SELECT format('%s.rate_limit_ledger', c.relnamespace::regnamespace) FROM pg_class c
		WHERE c.oid = 'rate_limit_ledger'::regclass;
	IF to_regprocedure('rate_limit_shards()') IS NOT NULL THEN
		RETURN QUERY SELECT quote_ident(p.schema) || '.rate_limit_ledger' FROM rate_limit_shards() p
			ORDER BY p.shard;
	END IF;
END $$;
COMMENT ON FUNCTION rate_limit_ledgers IS
	'The tables of the ledger, with their schemas: one, and on Citus one for each shard. On Citus, the first '
	'one has what was settled before there were shards.';

-- Citus passes SET LOCAL on to its workers only in a function that another function calls.
CREATE OR REPLACE FUNCTION rate_limit_ledger_drop(ledger text, before date) RETURNS void
	LANGUAGE plpgsql AS $$
DECLARE
	old record;
BEGIN
	SET LOCAL citus.propagate_set_commands = 'local';
	SET LOCAL lock_timeout = '100ms';
	FOR old IN SELECT c.oid::regclass AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = ledger::regclass AND c.relname ~ '_[0-9]{8}$'
			AND right(c.relname, 8)::date < before
	LOOP
		EXECUTE format('DROP TABLE %s', old.name);
	END LOOP;
EXCEPTION WHEN lock_not_available THEN
	NULL;
END $$;
COMMENT ON FUNCTION rate_limit_ledger_drop IS
	'Drops the days of a ledger before a day, unless another session has locked one for more than 100 ms.';

-- Only partitions have a primary key, because pg_dump --clean cannot restore one of the whole table. A new
-- partition is created as a table and then attached, as in the history, so that writers do not wait.
-- For a drop they wait for up to 100 ms, once a day, also on the workers of Citus. A table that another
-- session has locked is left for later: a reader of an old day does not hold up the days to come.
CREATE OR REPLACE FUNCTION rate_limit_ledger_upkeep(also date DEFAULT NULL) RETURNS void LANGUAGE plpgsql
	SECURITY DEFINER SET lock_timeout = '100ms' AS $$
DECLARE
	today CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
	first CONSTANT date := ((now() - (SELECT least(min(r.keep), interval '1000 years')
		FROM rate_limit_ledger_retention r)) AT TIME ZONE 'UTC')::date;
	ledger text;
	day date;
	part text;
BEGIN
	IF NOT pg_try_advisory_xact_lock(1885827694) THEN
		RETURN;
	END IF;
	FOR ledger IN SELECT * FROM rate_limit_ledgers() LOOP
		BEGIN
			FOREACH day IN ARRAY ARRAY[today - 1, today, today + 1, today + 2,
				greatest(today - 7, least(today + 7, coalesce(also, today)))] LOOP
				part := ledger || to_char(day, '_YYYYMMDD');
				CONTINUE WHEN to_regclass(part) IS NOT NULL;
				EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL, PRIMARY KEY (id))', part, ledger);
				EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', ledger,
					part, day, day + 1);
			END LOOP;
		EXCEPTION WHEN lock_not_available THEN
			NULL;
		END;
		PERFORM rate_limit_ledger_drop(ledger, first);
	END LOOP;
	-- A notice of a window that is not over would come back.
	DELETE FROM rate_limit_notices n WHERE n.at < first AND NOT EXISTS (
		SELECT FROM unnest('{f,t}'::boolean[]) AS d(durable), rate_limit_counters('rule/' || n.rule || '/'
			|| n.limit_name, d.durable, ARRAY[n.key]) c WHERE c.window_start = n.period);
END $$;
COMMENT ON FUNCTION rate_limit_ledger_upkeep IS
	'Creates the partitions of the ledger for yesterday, today, the next two days, and another day within 7 '
	'days (also). Drops those past their retention. A proxy runs it each hour.';

-- The shards settle their parts of a request at different times, so that the earliest is the time of the
-- request. A day is in UTC, and the session can have any TimeZone.
CREATE OR REPLACE FUNCTION rate_limit_ledger_rows("from" timestamptz DEFAULT '-infinity',
	until timestamptz DEFAULT 'infinity', user_id text DEFAULT NULL, below boolean DEFAULT false)
RETURNS TABLE ("time" timestamptz, day date, id uuid, "user" text, key_id bigint, ancestors text[],
	model text, input bigint, cache_read bigint, cache_write bigint, output bigint, money numeric,
	charges jsonb) LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN QUERY EXECUTE format('SELECT min(l.time), l.day, l.id, min(l.user_id), min(l.key_id), l.ancestors,
			min(l.model), min(l.input), min(l.cache_read), min(l.cache_write), min(l.output),
			rate_limit_decimal(min(l.money), ''money''),
			jsonb_agg(CASE c ->> ''unit'' WHEN ''money'' THEN c || jsonb_build_object(''units'',
				rate_limit_decimal((c ->> ''units'')::bigint, ''money'')) ELSE c END
				ORDER BY c ->> ''prefix'', c ->> ''key'')
		FROM (%s) l, jsonb_array_elements(l.charges) c GROUP BY l.day, l.id, l.ancestors
		HAVING min(l.time) >= $1 AND min(l.time) < $2 ORDER BY 1, 3',
		(SELECT string_agg(format('SELECT * FROM %s WHERE time >= $1 - interval ''1 day''
			AND time < $2 + interval ''1 day''
			AND day >= ($1 - interval ''32 days'')::date AND day <= ($2 + interval ''2 days'')::date %s', t,
			CASE WHEN user_id IS NOT NULL AND below THEN
				'AND (user_id = $3 OR ancestors <> ''{}'' AND ancestors @> ARRAY[$3])'
				WHEN user_id IS NOT NULL THEN 'AND user_id = $3' ELSE '' END),
			' UNION ALL ') FROM rate_limit_ledgers() t))
		USING "from", until, rate_limit_counted_user(user_id);
END $$;
COMMENT ON FUNCTION rate_limit_ledger_rows IS
	'What requests have cost, if they were settled in a time: a row for each request, also on Citus. '
	'user_id selects the requests of a user, and with below also of all who were below it then.';

-- The policy may be on another server.
CREATE OR REPLACE FUNCTION rate_limit_counted_user(user_id text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF has_table_privilege(to_regclass('rate_limit_users'), 'SELECT') THEN
		RETURN coalesce((SELECT u.counted_as FROM rate_limit_users u WHERE u.user_id = $1), $1);
	END IF;
	RETURN $1;
END $$;
COMMENT ON FUNCTION rate_limit_counted_user IS
	'The name by which a user counts and is in the ledger: the first one of a renamed user.';

-- Periods are as in limits that count by user: months from the day of the user's period_start, which is the
-- 1st if it has none, in the user's time zone. A day that a month lacks is its last.
CREATE OR REPLACE FUNCTION rate_limit_periods(user_id text, "from" timestamptz, until timestamptz)
RETURNS TABLE (starts timestamptz, ends timestamptz) LANGUAGE plpgsql STABLE ROWS 2 AS $$
DECLARE
	anchor date;
	zone text;
	month CONSTANT interval := '1 month';
BEGIN
	IF NOT coalesce(has_table_privilege(to_regclass('rate_limit_users'), 'SELECT'), false) THEN
		IF num_nonnulls($2, $3) < 2 THEN
			RAISE EXCEPTION 'from, until: must be given: the policy with the periods of users is not in this '
				'database' USING ERRCODE = 'invalid_parameter_value';
		END IF;
		RETURN QUERY SELECT $2, $3;
		RETURN;
	END IF;
	SELECT u.period_start, CASE WHEN u.period_start IS NOT NULL THEN u.time_zone END INTO anchor, zone
		FROM rate_limit_users u WHERE u.user_id = $1;
	anchor := coalesce(anchor, '2000-01-01');
	zone := coalesce(zone, 'UTC');
	-- A time can be infinite, but there is nothing before the first ledger, or in the future.
	$2 := CASE WHEN $2 IS NOT NULL THEN least(greatest($2, '2000-01-01Z'), now()) END;
	$3 := CASE WHEN $3 IS NOT NULL THEN least($3, now() + month) END;
	RETURN QUERY SELECT greatest(p.s, $2), least(p.e, $3) FROM (
		SELECT (anchor + a) AT TIME ZONE zone AS s, (anchor + (a + month)) AT TIME ZONE zone AS e
		FROM generate_series(date_trunc('month', coalesce($2, now()) AT TIME ZONE zone) - month,
				coalesce($3, now()) AT TIME ZONE zone, month) m,
			age(m, date_trunc('month', anchor::timestamp)) a) p
	WHERE p.s < coalesce($3, 'infinity') AND p.s <= now() AND p.e > coalesce($2, now()) ORDER BY 1;
END $$;
COMMENT ON FUNCTION rate_limit_periods IS
	'The billing periods of a user in a time, cut to it. Without a time, the period that is running.';

CREATE OR REPLACE FUNCTION rate_limit_invoice(user_id text, "from" timestamptz DEFAULT NULL,
	until timestamptz DEFAULT NULL)
RETURNS TABLE (period timestamptz, model text, requests bigint, input bigint, cache_read bigint,
	cache_write bigint, output bigint, money numeric) LANGUAGE sql STABLE AS $$
	SELECT p.starts, l.model, count(*), coalesce(sum(l.input), 0)::bigint,
		coalesce(sum(l.cache_read), 0)::bigint, coalesce(sum(l.cache_write), 0)::bigint,
		coalesce(sum(l.output), 0)::bigint, sum(l.money)
	FROM rate_limit_periods($1, $2, $3) p, rate_limit_ledger_rows(p.starts, p.ends, $1, true) l
	WHERE $1 IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
$$;
COMMENT ON FUNCTION rate_limit_invoice IS
	'What a user and all who were below it then have used from a time until another, by billing period and '
	'model. Without times: in the period that is running. money NULL: the model had no price.';

SELECT rate_limit_ledger_upkeep();
