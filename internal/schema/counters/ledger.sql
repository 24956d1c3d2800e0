-- The partitions of the ledger, and what reads it.

CREATE TABLE IF NOT EXISTS rate_limit_ledger_retention (
	keep interval PRIMARY KEY CONSTRAINT keep_must_be_1_day_or_more CHECK (keep >= interval '1 day')
);
INSERT INTO rate_limit_ledger_retention SELECT '400 days'
	WHERE NOT EXISTS (SELECT FROM rate_limit_ledger_retention);
COMMENT ON TABLE rate_limit_ledger_retention IS
	'The retention of the ledger: one row. To change it: UPDATE rate_limit_ledger_retention SET keep = '
	'''2 years''.';
COMMENT ON COLUMN rate_limit_ledger_retention.keep IS 'Days that ended longer ago are dropped.';

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
END $$;
COMMENT ON FUNCTION rate_limit_ledger_upkeep IS
	'Creates the partitions of the ledger for yesterday, today, the next two days, and another day within 7 '
	'days (also). Drops those past their retention. A proxy runs it each hour.';

-- The shards settle their parts of a request at different times, so that the earliest is the time of the
-- request. A day is in UTC, and the session can have any TimeZone.
CREATE OR REPLACE FUNCTION rate_limit_ledger_rows("from" timestamptz DEFAULT '-infinity',
	until timestamptz DEFAULT 'infinity', user_id text DEFAULT NULL)
RETURNS TABLE ("time" timestamptz, day date, id uuid, "user" text, key_id bigint, ancestors text[],
	model text, input bigint, cache_read bigint, cache_write bigint, output bigint, charges jsonb)
LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN QUERY EXECUTE format('SELECT min(l.time), l.day, l.id, min(l.user_id), min(l.key_id), l.ancestors,
			min(l.model), min(l.input), min(l.cache_read), min(l.cache_write), min(l.output),
			jsonb_agg(c ORDER BY c ->> ''prefix'', c ->> ''key'')
		FROM (%s) l, jsonb_array_elements(l.charges) c GROUP BY l.day, l.id, l.ancestors
		HAVING min(l.time) >= $1 AND min(l.time) < $2 ORDER BY 1, 3',
		(SELECT string_agg(format('SELECT * FROM %s WHERE time >= $1 - interval ''1 day''
			AND time < $2 + interval ''1 day''
			AND day >= ($1 - interval ''32 days'')::date AND day <= ($2 + interval ''2 days'')::date
			AND ($3 IS NULL OR user_id = $3)', t),
			' UNION ALL ') FROM rate_limit_ledgers() t)) USING "from", until, user_id;
END $$;
COMMENT ON FUNCTION rate_limit_ledger_rows IS
	'What requests have cost, if they were settled in a time: a row for each request, also on Citus. '
	'user_id selects the requests of a user.';

SELECT rate_limit_ledger_upkeep();
