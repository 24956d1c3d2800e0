-- What processes held that were killed or cut off. Their names expire without an end.

-- TABLE rate_limit_lost: Names of processes that were not renewed for 8 seconds and were not ended, with what
-- their running requests held. What these requests cost is not charged if the process was killed.
--   processes: The table of the name.
--   process: The name.
--   units: The units that each limit held, by its prefix. Money is in millionths.
--   found_at: When the units were counted.
--   reported_at: When a proxy has reported it, 10 seconds later. NULL: not yet.

-- What killed processes held that were reported within a day (at), as a sum and as a sentence.
CREATE OR REPLACE FUNCTION rate_limit_lost_units()
	RETURNS TABLE (at timestamptz, units numeric, summary text) LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF NOT has_table_privilege('rate_limit_lost', 'SELECT') THEN
		RETURN;
	END IF;
	RETURN QUERY SELECT u.reported_at, sum(u.units), format('A proxy was killed, or cut off from '
			'the database, until %s UTC. What its running requests cost may not be charged: they held at '
			'most %s.',
			to_char(max(u.found_at) AT TIME ZONE 'UTC', 'HH24:MI:SS'),
			string_agg(u.units || ' units of ' || u.prefix, ', ' ORDER BY u.prefix))
		FROM (SELECT l.reported_at, e.key AS prefix, sum(e.value::numeric) AS units,
				max(l.found_at) AS found_at
			FROM rate_limit_lost l, jsonb_each_text(l.units) e
			WHERE l.reported_at > now() - interval '1 day' GROUP BY 1, 2) u
		GROUP BY u.reported_at;
END $$;

-- Returns once what the running requests of a killed process held, as rate_limit_lost_units, or else no row.
-- Proxies run it each second.
--
-- A name that was not renewed for 8 seconds cannot be renewed any more, see package process. What it holds is
-- free 2 seconds later. Between, no reservation has removed it from the counters, so that it is counted
-- then. Its process may live: after an outage, it ends the name once it holds the units under another one.
-- What it has not ended 10 seconds later is reported once, and ended.
CREATE OR REPLACE FUNCTION rate_limit_lost_upkeep() RETURNS TABLE (units numeric, summary text)
	LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '100ms' SET jit = off AS $$
DECLARE
	place record;
	late bigint[];
BEGIN
	FOR place IN SELECT t.processes, array_agg(t.counters) AS counters FROM rate_limit_counter_tables() t
		GROUP BY 1
	LOOP
		EXECUTE format('SELECT array_agg(p.process) FROM %s p WHERE p.seen > ''-infinity'' '
			'AND p.seen < clock_timestamp() - interval ''8 s''', place.processes) INTO late;
		CONTINUE WHEN late IS NULL;
		IF NOT pg_try_advisory_xact_lock(1885827698) THEN
			RETURN;
		ELSIF EXISTS (SELECT FROM unnest(late) p WHERE NOT EXISTS (SELECT FROM rate_limit_lost l
			WHERE (l.processes, l.process) = (place.processes::text, p)))
		THEN
			EXECUTE format('INSERT INTO rate_limit_lost (processes, process, units)
				SELECT $1, p, coalesce(h.units, ''{}'') FROM unnest($2) p LEFT JOIN (
					SELECT s.process, jsonb_object_agg(s.prefix, s.units) AS units FROM (
						SELECT c.held[i][1] AS process, c.prefix, sum(c.held[i][2]) AS units
						FROM (SELECT prefix, held FROM %s WHERE held IS NOT NULL
							UNION ALL SELECT prefix, held FROM %s WHERE held IS NOT NULL) c,
							generate_subscripts(c.held, 1) i
						WHERE c.held[i][1] = ANY ($2) AND c.held[i][2] > 0 GROUP BY 1, 2) s
					GROUP BY 1) h ON h.process = p
				ON CONFLICT DO NOTHING', place.counters[1], place.counters[2])
				USING place.processes::text, late;
		END IF;
		EXECUTE format('WITH reported AS (UPDATE %s SET seen = ''-infinity'' WHERE process = ANY ($2)
				AND seen > ''-infinity'' AND seen < clock_timestamp() - interval ''8 s''
				AND process IN (SELECT l.process FROM rate_limit_lost l WHERE l.processes = $1
					AND l.found_at < clock_timestamp() - interval ''10 s'') RETURNING process)
			UPDATE rate_limit_lost l SET reported_at = now() FROM reported t
			WHERE (l.processes, l.process) = ($1, t.process)', place.processes)
			USING place.processes::text, late;
	END LOOP;
	IF EXISTS (SELECT FROM rate_limit_lost l WHERE l.reported_at IS NULL OR l.reported_at = now()) THEN
		DELETE FROM rate_limit_lost l WHERE l.reported_at < now() - interval '30 days'
			OR l.reported_at = now() AND l.units = '{}' OR l.reported_at IS NULL
			AND l.found_at < clock_timestamp() - interval '20 s';
		RETURN QUERY SELECT u.units, u.summary FROM rate_limit_lost_units() u WHERE u.at = now();
	END IF;
END $$;
