-- The partitions of the ledger.

-- TABLE rate_limit_ledger_retention: The retention of the ledger: one row. To change it: UPDATE
-- rate_limit_ledger_retention SET keep = '2 years'.
--   keep: Days that ended longer ago are dropped. 1,000 years: only an archive drops days.
--   noticed_at: When rate_limit_notice_upkeep has run.
--   noticed_limit: The prefix of the counters that it has read last.
--   noticed_key: The key at which it goes on. Empty: at the next limit.
--   currency: The code of the currency of the prices, such as EUR, for people. NULL: none. To name it: UPDATE
--     rate_limit_ledger_retention SET currency = 'EUR'.

-- The tables of the ledger, with their schemas: one, and on Citus one for each shard. On Citus, the first one
-- has what was settled before there were shards.
CREATE OR REPLACE FUNCTION rate_limit_ledgers() RETURNS SETOF text LANGUAGE sql STABLE AS $$
	SELECT format('%s.rate_limit_ledger', s.id::regnamespace)
	FROM unnest(rate_limit_schemas()) WITH ORDINALITY AS s(id, n) ORDER BY s.n
$$;

-- Drops the days of a ledger before a day, unless another session has locked one for more than 100 ms.
--
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

-- Creates the partitions of the ledger for yesterday, today, the next two days, and another day within 7 days
-- (also), which it opens for late settlements. Drops those past their retention, and forgets again who was
-- forgotten. A proxy runs it each hour.
--
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
	days CONSTANT datemultirange := rate_limit_ledger_window(now(), now());
	late CONSTANT date := greatest(lower(days) + 1, least(upper(days) - 2, coalesce(also, today)));
	ledger text;
	day date;
	part text;
BEGIN
	IF NOT pg_try_advisory_xact_lock(1885827694) THEN
		RETURN;
	END IF;
	PERFORM rate_limit_forget_again(); -- before it locks partitions
	FOR ledger IN SELECT * FROM rate_limit_ledgers() LOOP
		BEGIN
			FOREACH day IN ARRAY ARRAY[today - 1, today, today + 1, today + 2, late] LOOP
				part := ledger || to_char(day, '_YYYYMMDD');
				IF day = late AND rate_limit_is_closed(to_regclass(part)) THEN
					EXECUTE format('ALTER TABLE %s DROP CONSTRAINT day_is_summed', part);
					INSERT INTO rate_limit_ledger_days VALUES (day, false, now() + interval '1 hour')
						ON CONFLICT ON CONSTRAINT rate_limit_ledger_days_pkey
						DO UPDATE SET summed = false, open_until = excluded.open_until;
				END IF;
				CONTINUE WHEN to_regclass(part) IS NOT NULL;
				EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL, PRIMARY KEY (id))', part, ledger);
				PERFORM rate_limit_strip(ARRAY[part::regclass::oid]);
				EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', ledger,
					part, day, day + 1);
			END LOOP;
		EXCEPTION WHEN lock_not_available THEN
			NULL;
		END;
		PERFORM rate_limit_ledger_drop(ledger, least(first, late));
	END LOOP;
	-- An archive also drops days.
	DELETE FROM rate_limit_totals t WHERE t.day < (SELECT min(p.day) FROM rate_limit_ledger_parts() p);
	DELETE FROM rate_limit_ledger_days d WHERE d.day < (SELECT min(p.day) FROM rate_limit_ledger_parts() p);
	-- A notice of a window that is not over would come back.
	DELETE FROM rate_limit_notices o WHERE o.ctid = ANY (ARRAY(
		SELECT n.ctid FROM rate_limit_notices n WHERE n.at < first AND NOT EXISTS (
			SELECT FROM unnest('{f,t}'::boolean[]) AS d(durable),
				rate_limit_counters(rate_limit_prefix(n.rule, n.limit_name), d.durable, ARRAY[n.key]) c
			WHERE c.key COLLATE "C" = n.key AND c.window_start = n.period)
		FOR UPDATE OF n SKIP LOCKED));
END $$;
