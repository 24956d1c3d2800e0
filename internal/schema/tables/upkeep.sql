-- Functions that create partitions of the history, and delete history past its retention. Unless the caller
-- has the rights of the owner, a future time as the argument now counts as the current time. So the role of
-- the proxies may run the functions, but cannot delete history within its retention.
--
-- rate_limit_upkeep takes no lock that blocks readers or writers. Only rate_limit_drop_expired drops
-- partitions, for which it blocks readers and writers.

-- The time before which a part of the history (what) is past its retention at a time (now). NULL: the part is
-- kept for ever. For a role other than the owner of the tables, now is at most the current time.
CREATE OR REPLACE FUNCTION rate_limit_cutoff(what text, now timestamptz) RETURNS timestamptz
	LANGUAGE sql STABLE SECURITY DEFINER AS $$
	SELECT CASE WHEN rate_limit_owns_history() THEN $2
		ELSE least($2, pg_catalog.now()) END - least(r.keep, interval '1000 years')
	FROM rate_limit_retention r WHERE r.what = $1
$$;

-- The other sessions that have a lock on a table, as text. NULL: none.
CREATE OR REPLACE FUNCTION rate_limit_holders(relation oid) RETURNS text
	LANGUAGE sql STABLE SECURITY DEFINER AS $$
	SELECT string_agg(DISTINCT coalesce('pid ' || l.pid, 'a prepared transaction'), ', ') FROM pg_locks l
	WHERE l.locktype = 'relation' AND l.database = (SELECT d.oid FROM pg_database d
		WHERE d.datname = current_database()) AND l.relation = $1
		AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
$$;

-- Drops the partitions of rate_limit_audit and of the minutes and hours of rate_limit_metrics that are past
-- their retention. A partition in use stays, and held_by names the sessions that use it. Writers wait for up
-- to 100 ms. One of the proxies, or pg_cron, runs this function about once a minute.
CREATE OR REPLACE FUNCTION rate_limit_drop_expired(now timestamptz DEFAULT now())
	RETURNS TABLE (name text, held_by text) LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '100ms' AS $$
DECLARE
	expired record;
	-- busy maps each parent with a lock of another session to the sessions that hold locks on it.
	busy jsonb := '{}';
BEGIN
	-- One session at a time runs this function or rate_limit_upkeep, which takes the same lock: 1885827693 is
	-- the number of the lock, and the second number stands for the table, because a database can have several
	-- tables of that name.
	IF NOT pg_try_advisory_xact_lock(1885827693,
		('rate_limit_audit'::regclass::oid::bigint - 2147483648)::int) THEN
		RETURN;
	END IF;
	FOR expired IN SELECT 'rate_limit_' || k.what AS parent, p.name, rate_limit_holders(p.id) AS held_by
		FROM unnest('{audit,metrics_minute,metrics_hour}'::text[]) AS k(what)
		CROSS JOIN LATERAL rate_limit_partitions('rate_limit_' || k.what) p
		WHERE p.ends <= rate_limit_cutoff(k.what, $1)
	LOOP
		name := expired.name;
		held_by := coalesce(expired.held_by, busy ->> expired.parent);
		IF held_by IS NULL THEN
			BEGIN
				-- This first locks the parent. Writers wait behind that lock, so it is tried once for each
				-- parent.
				EXECUTE format('DROP TABLE %s', expired.name);
			EXCEPTION WHEN lock_not_available THEN
				held_by := coalesce(rate_limit_holders(expired.parent::regclass), 'another session')
					|| ' by way of ' || expired.parent;
				busy := busy || jsonb_build_object(expired.parent, held_by);
			WHEN dependent_objects_still_exist THEN
				held_by := SQLERRM;
			WHEN undefined_table THEN
				CONTINUE;
			END;
		END IF;
		RETURN NEXT;
	END LOOP;
END $$;

-- Creates the partitions of rate_limit_audit and of the minutes and hours of rate_limit_metrics for today and
-- the next 7 days. Deletes up to 20,000 rows of days of rate_limit_metrics past their retention, and old rows
-- of rate_limit_writers. Waits for a lock for at most 1 s. Returns a row for each effect. what is made (a
-- partition), deleted (rows), skipped (a table that another session has locked), or busy (another process
-- runs the function, or ran it within the pause). For a role that does not own the tables, now is at most the
-- current time. One of the proxies, or pg_cron, runs this about once a minute.
CREATE OR REPLACE FUNCTION rate_limit_upkeep(now timestamptz DEFAULT now(), pause interval DEFAULT '0')
	RETURNS TABLE (what text, name text, rows bigint) LANGUAGE plpgsql SECURITY DEFINER
	SET lock_timeout = '1s' AS $$
DECLARE
	today CONSTANT date := CASE WHEN rate_limit_owns_history() THEN $1 ELSE pg_catalog.now() END;
	parent text;
	column_name text;
	before timestamptz;
BEGIN
	IF NOT pg_try_advisory_xact_lock(1885827693,
		('rate_limit_audit'::regclass::oid::bigint - 2147483648)::int)
		OR EXISTS (SELECT FROM rate_limit_retention r WHERE r.upkeep_at > pg_catalog.now() - pause
			AND r.upkeep_at <= pg_catalog.now()) THEN
		what := 'busy';
		RETURN NEXT;
		RETURN;
	END IF;
	FOREACH parent IN ARRAY '{rate_limit_audit,rate_limit_metrics_minute,rate_limit_metrics_hour}'::text[]
	LOOP
		FOR ahead IN 0..7 LOOP
			BEGIN
				name := rate_limit_make_partition(today + ahead, parent);
			EXCEPTION WHEN lock_not_available THEN
				what := 'skipped';
				name := parent;
				RETURN NEXT;
				EXIT;
			END;
			IF name IS NOT NULL THEN
				what := 'made';
				RETURN NEXT;
			END IF;
		END LOOP;
	END LOOP;

	what := 'deleted';
	FOR name, column_name, before IN
		VALUES ('metrics_day', 'time', date_trunc('day', rate_limit_cutoff('metrics_day', $1))),
			('writers', 'seen', least($1, pg_catalog.now()) - interval '30 days')
	LOOP
		EXECUTE format('DELETE FROM rate_limit_%1$s d WHERE d.ctid = ANY (ARRAY(SELECT o.ctid
			FROM rate_limit_%1$s o WHERE o.%2$s < $1 LIMIT 20000 FOR UPDATE SKIP LOCKED))', name, column_name)
			USING before;
		GET DIAGNOSTICS rows = ROW_COUNT;
		RETURN NEXT;
	END LOOP;

	UPDATE rate_limit_retention r SET upkeep_at = pg_catalog.now()
		FROM (SELECT f.what FROM rate_limit_retention f FOR UPDATE SKIP LOCKED) AS free
		WHERE r.what = free.what;
END $$;
