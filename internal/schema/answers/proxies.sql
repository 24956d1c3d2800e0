-- What proxies report, and the state of the database.

-- The number of policy changes before the time made_before that a proxy has not applied yet. applied and log
-- are from the proxy's report. NULL: the proxy has no policy, or has read another log of changes.
--
-- rate_limit_behind counts the changes that are not visible in the proxy's snapshot. A comparison of the
-- numbers of changes would not suffice, because a change that is committed late has a lower number than
-- changes that the proxy has applied before.
CREATE OR REPLACE FUNCTION rate_limit_behind(applied text, log oid,
	made_before timestamptz DEFAULT 'infinity') RETURNS bigint
	LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN (SELECT count(*) FROM rate_limit_changes c WHERE c.at < made_before
		AND c.xid >= pg_snapshot_xmin(applied::pg_snapshot)
		AND NOT pg_visible_in_snapshot(c.xid, applied::pg_snapshot)
		HAVING applied IS NOT NULL AND coalesce(log = to_regclass('rate_limit_changes'), true));
EXCEPTION WHEN data_exception OR undefined_table THEN
	RETURN NULL; -- a proxy may report anything, and this database may lack the policy
END $$;

-- Whether a proxy applies the changes of a transaction. applied and log are from the proxy's report. NULL:
-- the proxy has no policy.
CREATE OR REPLACE FUNCTION rate_limit_has_applied(applied text, log oid, change xid8) RETURNS boolean
	LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN coalesce(log = to_regclass('rate_limit_changes'), true)
		AND pg_visible_in_snapshot(change, applied::pg_snapshot);
EXCEPTION WHEN data_exception THEN
	RETURN false;
END $$;

-- TYPE rate_limit_report: The fields of rate_limit_nodes.report.

-- The fields of a proxy's report. A field that cannot be read is NULL.
--
-- A proxy may report anything, and one odd report must not hide the others.
CREATE OR REPLACE FUNCTION rate_limit_read_report(report json) RETURNS rate_limit_report
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	readable rate_limit_report;
	field text;
BEGIN
	RETURN json_populate_record(readable, report);
EXCEPTION WHEN data_exception THEN
	-- No field can be read beside an escape that is no character.
	report := regexp_replace(report::text, '\\u(0000|d[89a-f]..)', '\\ufffd', 'gi');
	FOR field IN SELECT a.attname FROM pg_attribute a WHERE a.attrelid = 'rate_limit_report'::regclass LOOP
		CONTINUE WHEN (report -> field)::text LIKE '%\\ufffd%';
		BEGIN
			readable := json_populate_record(readable, json_build_object(field, report -> field));
		EXCEPTION WHEN data_exception THEN
			NULL;
		END;
	END LOOP;
	RETURN readable;
END $$;

-- The time at of a proxy's report, by the clock of the database. The report was written at seen, which was
-- clock by the clock of the proxy. NULL: there is no such time.
CREATE OR REPLACE FUNCTION rate_limit_reported_at(seen timestamptz, clock bigint, at bigint)
	RETURNS timestamptz LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
	RETURN seen + (at - clock) * interval '1 us';
EXCEPTION WHEN data_exception THEN
	RETURN NULL;
END $$;

-- The proxies of this server and their progress. Rows of rate_limit_nodes from a copy of another server are
-- left out. Of several proxies with one name, the second one has the suffix #2.
--   region: The region in the proxy's configuration, if any.
--   version: The version of the proxy's program.
--   live: Whether the proxy runs.
--   cannot: The statement that would grant the proxy's role the privileges to decide. NULL: the role has the
--     privileges.
--   policy: Whether the proxy has a policy.
--   behind: The number of policy changes that the proxy has not applied yet. NULL: the proxy has no policy,
--     or has not read the tables since they were restored.
--   local_from: When the proxy last started to limit by itself, because the database made no decisions. NULL:
--     never.
--   local_until: When the proxy last stopped limiting by itself.
--   seconds_ago: The seconds since seen.
--   problems: The rules that the proxy cannot use, each with the permitted values; sites of the proxy that
--     let requests without an API key pass without a limit; and what a server refuses in the DSN of another
--     database of the proxy.
--   admitted: The number of admitted requests since the start of the proxy, including local decisions.
--   limited: The same with this outcome.
--   blocked: The same with this outcome.
--   rejected: The same with this outcome.
--   overloaded: The same with this outcome.
--   failed: The same with this outcome.
--   refused: The same for all requests that a decision refused.
--   undecided: The same for overloaded and failed requests.
--   open_from: When the last series of overloaded and failed requests began. A pause of an hour ends a
--     series.
--   open_until: When a request last had no decision. NULL: never since the start of the proxy.
--   open_passed: The number of requests in the last series that passed.
--   open_refused: The number of requests in the last series that did not pass.
--   locally: The number of requests that the proxy decided without the database, at its share of each limit.
--   busiest: The proxy's limits with the most requests since its start, at most 20: {prefix: [admitted,
--     limited]}.
--   late: The number of changes in behind that were made at least 10 seconds before seen.
--   lost: The number of settlements since the start of the proxy that may not have arrived: what these
--     requests cost may not be charged. The row of such a proxy stays for a day after its end.
--   lost_at: When the last of them was lost.
--   seconds_ahead: The seconds by which the clock of the proxy was ahead of the clock of the server.
CREATE OR REPLACE VIEW rate_limit_proxies WITH (security_invoker) AS
	SELECT n.node || CASE WHEN n.twin > 1 THEN '#' || n.twin ELSE '' END AS node, r.region, r.version,
		{node_is_live} AS live,
		n.ended, r.cannot, n.epoch, r.applied IS NOT NULL AS policy,
		rate_limit_behind(r.applied, r.log) AS behind, n.seen,
		rate_limit_reported_at(n.seen, r.clock, r.local_from) AS local_from,
		rate_limit_reported_at(n.seen, r.clock, r.local_until) AS local_until,
		extract(epoch FROM clock_timestamp() - n.seen)::float8 AS seconds_ago,
		coalesce(r.problems, '{}') AS problems, r.requests[1] AS admitted, r.requests[2] AS limited,
		r.requests[3] AS blocked, r.requests[4] AS rejected, r.requests[5] AS overloaded,
		r.requests[6] AS failed, rate_limit_reported_at(n.seen, r.clock, r.open_from) AS open_from,
		rate_limit_reported_at(n.seen, r.clock, r.open_until) AS open_until, r.open_passed, r.open_refused,
		r.locally, r.busiest,
		rate_limit_behind(r.applied, r.log, n.seen - interval '10 s') AS late,
		coalesce(r.lost, 0) AS lost, rate_limit_reported_at(n.seen, r.clock, r.lost_at) AS lost_at,
		round(r.clock / 1000000.0 - extract(epoch FROM n.seen))::bigint AS seconds_ahead,
		(SELECT sum(t) FROM unnest(r.requests) t)::bigint - r.requests[1] - r.requests[5] - r.requests[6]
			AS refused, r.requests[5] + r.requests[6] AS undecided
	FROM (
		SELECT m.*, row_number() OVER (PARTITION BY m.node, m.ended IS NULL ORDER BY m.epoch) AS twin
		FROM rate_limit_nodes m
		WHERE m.system = (SELECT system_identifier FROM pg_control_system())
	) AS n, rate_limit_read_report(n.report) AS r;

-- The time zones of the policy that the server does not know, with the number of their users, and their
-- limits.
--
-- The policy may be missing, or the role may not read it. The index on time_zone finds the zones of users.
CREATE OR REPLACE FUNCTION rate_limit_unknown_zones() RETURNS TABLE (zone text, users bigint, limits text[])
	LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
	IF rate_limit_may_read('users', 'rule_limits')
		AND to_regprocedure('rate_limit_known_zone(text)') IS NOT NULL THEN
		RETURN QUERY WITH RECURSIVE found(name) AS (
			SELECT min(u.time_zone) FROM rate_limit_users u WHERE u.time_zone <> 'UTC'
			UNION ALL SELECT (SELECT min(u.time_zone) FROM rate_limit_users u WHERE u.time_zone > f.name
				AND u.time_zone <> 'UTC') FROM found f WHERE f.name IS NOT NULL
		), named AS (SELECT f.name FROM found f UNION SELECT l.time_zone FROM rate_limit_rule_limits l)
		SELECT n.name, (SELECT count(*) FROM rate_limit_users u WHERE u.time_zone = n.name
				AND u.time_zone <> 'UTC'),
			ARRAY(SELECT concat(l.rule, '/', l.name) FROM rate_limit_rule_limits l WHERE l.time_zone = n.name
				ORDER BY 1)
		FROM named n WHERE n.name IS NOT NULL AND rate_limit_known_zone(n.name) IS NULL;
	END IF;
END $$;

-- The tiers that users or their API keys have and that no rule in force limits, with the numbers of users: a
-- number of 10,000 or more may be too low. The tier anonymous includes users with a tier that has ended.
--
-- A rule limits a tier if its tiers name the tier, or if it has no conditions. A tier that an exempt rule
-- names is meant to be without limits. The policy may be missing, or the role may not read it.
CREATE OR REPLACE FUNCTION rate_limit_unlimited() RETURNS TABLE (tier text, users bigint)
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	most CONSTANT int := 10000; -- The page asks all the time, so not all users are counted.
BEGIN
	IF rate_limit_may_read('tiers', 'users', 'api_keys', 'rules') THEN
		RETURN QUERY SELECT t.tier, n.users FROM (SELECT t.* FROM rate_limit_tiers t WHERE NOT EXISTS (
				SELECT FROM rate_limit_rules r WHERE r.mode = 'enforce' AND r.valid @> now()
					AND (t.tier = ANY (r.tiers) OR r.tiers IS NULL AND r.action = 'limit'
						AND rate_limit_conditions(r) = '{}')) OFFSET 0) AS t,
			LATERAL (SELECT count(*) AS users FROM (
				(SELECT u.user_id FROM rate_limit_users u WHERE u.tier = t.tier AND u.tier_until > now()
					LIMIT most)
				UNION (SELECT u.user_id FROM rate_limit_users u WHERE t.tier = 'anonymous'
					AND u.tier_until <= now() AND u.tier_until < 'infinity' LIMIT most)
				UNION (SELECT k.user_id FROM rate_limit_api_keys k WHERE k.tier = t.tier
					AND least(k.revoked_at, k.expires_at) > now() LIMIT most)) AS u) AS n
		WHERE n.users > 0 ORDER BY t.rank, t.tier;
	END IF;
END $$;

-- A sentence about each role with rights that rate_limit_grant has not granted, with the statement that takes
-- them back.
CREATE OR REPLACE FUNCTION rate_limit_exposed() RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('grants') THEN
		RETURN QUERY SELECT format('The role %s may %s on %s%s, which rate_limit_grant has not granted. To '
				'take that back: SELECT rate_limit_revoke(%L)', quote_ident(s.role),
			string_agg(DISTINCT s.privilege || CASE WHEN s.grantable THEN ' WITH GRANT OPTION' ELSE '' END,
				', '),
			array_to_string((array_agg(DISTINCT s.object))[1:8], ', '),
			' and ' || nullif(greatest(count(DISTINCT s.object) - 8, 0), 0) || ' others', s.role)
		FROM rate_limit_surplus() s GROUP BY s.role ORDER BY 1;
	END IF;
END $$;

-- A sentence about each role from which row level security hides rows, with the statements that end it.
--
-- The owner, members of its role, and roles with BYPASSRLS see all rows.
CREATE OR REPLACE FUNCTION rate_limit_hidden() RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('grants') THEN
		RETURN QUERY SELECT format('Row level security hides rows from the role %I. To switch it off (or '
				'ALTER ROLE %1$I BYPASSRLS): %s', r.rolname,
			string_agg(format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY', c.oid::regclass), '; '
				ORDER BY c.oid::regclass::text))
		FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
			OR r.rolname IN (SELECT g.role FROM rate_limit_grants g)
		WHERE c.relname LIKE 'rate\_limit\_%' AND c.relrowsecurity AND NOT c.relispartition
			AND c.relnamespace = ANY (rate_limit_schemas()) AND NOT (r.rolsuper OR r.rolbypassrls)
			AND (c.relforcerowsecurity OR NOT pg_has_role(r.oid, c.relowner, 'USAGE'))
			AND has_any_column_privilege(r.oid, c.oid, 'SELECT')
		GROUP BY r.rolname ORDER BY 1;
	END IF;
END $$;

-- The rows of prices that have charged searches, sound or pictures without a price of their own, by the
-- newest such rows of the ledger, of the last 7 days.
--
-- The policy or the ledger may be missing, or the role may not read them. The newest rows of a week are
-- enough, because what proxies charge all the time is among them.
CREATE OR REPLACE FUNCTION rate_limit_unpriced() RETURNS TABLE (price text, part text)
	LANGUAGE plpgsql STABLE AS $$
DECLARE
	condition CONSTANT text := 'num_nonnulls(audio_input, audio_cache_read, audio_output, image_input, '
		'image_output, search, lines) > 0 AND day > (now() AT TIME ZONE ''UTC'')::date - 8 '
		'AND kind = ''charge''';
	source text;
BEGIN
	IF rate_limit_may_read('prices', 'ledger') THEN
		SELECT string_agg(format('(SELECT to_jsonb(t) - ''lines'' AS one, t.lines FROM %s t WHERE %s '
			'ORDER BY t.time DESC LIMIT 300)', l, condition), ' UNION ALL ') INTO source
			FROM rate_limit_ledgers() l;
		RETURN QUERY EXECUTE format('SELECT p.model, c.part
			FROM (SELECT DISTINCT coalesce(o ->> ''price'', o ->> ''model'') AS model,
					coalesce(o ->> ''price_valid'', ''(,)'') AS valid, n.part
				FROM (%s) l, jsonb_array_elements(l.one || coalesce(l.lines, ''[]'')) AS o,
					unnest(''{search,audio_input,audio_cache_read,audio_output,image_input,image_output}''
						::text[]) AS n(part)
				WHERE (o ->> n.part)::numeric > 0) AS c
			JOIN rate_limit_prices p ON p.model = c.model AND p.valid = c.valid::tstzrange
			WHERE concat_ws('' '', array_to_string(p.parts, '' ''), array_to_string(p.tiers, '' ''))
				!~ (''(^|[ .])'' || replace(c.part, ''cache_read'', ''(cache_read|input)'') || ''[@=]'')
			ORDER BY 1, 2', source);
	END IF;
END $$;

-- A sentence about the age of the newest price, if rules have limits in money that are not off.
CREATE OR REPLACE FUNCTION rate_limit_price_age() RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('prices', 'rules', 'rule_limits') THEN
		RETURN QUERY SELECT CASE WHEN d.days IS NULL
				THEN 'No model has a price, so limits in money refuse all models.'
			ELSE format('The newest price is %s old.', CASE d.days WHEN 0 THEN 'less than a day'
				WHEN 1 THEN '1 day' ELSE d.days || ' days' END) END
			FROM (SELECT floor(extract(epoch FROM now() - max(p.updated_at)) / 86400) AS days
				FROM rate_limit_prices p) AS d
			WHERE EXISTS (SELECT FROM rate_limit_rule_limits l JOIN rate_limit_rules r ON r.name = l.rule
				WHERE l.unit = 'money' AND r.mode <> 'off');
	END IF;
END $$;

-- A sentence about each of the five oldest sessions, prepared transactions and replication slots of this
-- server that keep vacuum from removing what the last 10,000 transactions have replaced, or the last 1,000
-- for more than a minute, with what ends it.
--
-- A session holds back vacuum by the number of its transaction, or by its snapshot. All roles see both, but
-- the rest of a session only those with its role or pg_read_all_stats. VACUUM itself holds back none. A
-- transaction of a minute is named early. What has no time, or one that is hidden, is named by the number of
-- transactions alone.
CREATE OR REPLACE FUNCTION rate_limit_vacuum_holders() RETURNS SETOF text LANGUAGE sql STABLE AS $$
	SELECT format('Vacuum keeps what the last %s transactions have replaced, which slows down decisions '
		'about busy keys, because of %s%s. %s', h.age, h.who, ', since '
			|| to_char(h.since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC', h.remedy)
	FROM (
		SELECT greatest(age(a.backend_xid), age(a.backend_xmin)) AS age, a.xact_start AS since,
			CASE WHEN a.datid IS NULL THEN 'a standby with hot_standby_feedback, of the session ' || a.pid
				ELSE format('the session %s of the role %I (%s)', a.pid, a.usename,
					concat_ws(', ', nullif(a.application_name, ''), coalesce(a.state, format('without '
						'pg_read_all_stats, %I does not see since when', current_user)))) END AS who,
			CASE WHEN a.datid IS NULL THEN 'End the old transactions on the standby'
				ELSE format('To end it: SELECT pg_terminate_backend(%s)', a.pid) END AS remedy
		FROM pg_stat_activity a WHERE (a.datname = current_database() OR a.datid IS NULL)
			AND a.pid <> ALL (ARRAY(SELECT v.pid FROM pg_stat_progress_vacuum v) || pg_backend_pid())
		UNION ALL
		SELECT age(p.transaction), p.prepared, format('the prepared transaction %L of the role %I', p.gid,
			p.owner), format('To end it: ROLLBACK PREPARED %L', p.gid)
		FROM pg_prepared_xacts p WHERE p.database = current_database()
		UNION ALL
		SELECT greatest(age(s.xmin), age(s.catalog_xmin)), NULL, format('the %s replication slot %L%s',
			CASE WHEN s.active THEN 'active' ELSE 'unused' END, s.slot_name,
			CASE WHEN s.xmin IS NULL THEN ', in system catalogs' END),
			CASE WHEN s.active THEN 'End the old transactions of who reads it'
				ELSE format('To drop it: SELECT pg_drop_replication_slot(%L)', s.slot_name) END
		FROM pg_replication_slots s
	) h WHERE h.age > CASE WHEN h.since < now() - interval '1 minute' THEN 1000 ELSE 10000 END
	ORDER BY h.age DESC LIMIT 5
$$;

-- A sentence about each calendar limit in money with another time zone than invoices of its users.
--
-- The page asks all the time, so of the users with a time zone, 10,000 are looked at.
CREATE OR REPLACE FUNCTION rate_limit_billing_differs() RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('users') THEN
		RETURN QUERY WITH c AS MATERIALIZED (SELECT * FROM rate_limit_calendars())
		SELECT format('The limit %s/%s begins its windows in %s, but invoices of the tier %s %sin %s.',
			c.rule, c.limit_name, c.zone, string_agg(to_json(c.tier)::text, ', ' ORDER BY c.tier), b.own,
			b.zone)
		FROM c JOIN (SELECT f.tier, f.zone, '' AS own, false AS anchored FROM c f WHERE f.place = 1
			UNION SELECT u.tier, u.time_zone, 'by time_zone ', u.period_start IS NOT NULL
			FROM (SELECT * FROM rate_limit_users u WHERE u.time_zone <> 'UTC' LIMIT 10000) u) b USING (tier)
		WHERE c.zone <> b.zone AND NOT (b.anchored AND c.unit IN ('month', 'year'))
		GROUP BY c.rule, c.limit_name, c.zone, b.own, b.zone ORDER BY 1;
	END IF;
END $$;

-- Whether limits are enforced, as a sentence. The first row is about all limits, each other row about a
-- proxy, a time zone, a role or a tier.
--   state: enforcing; warning: see the other rows; open: requests have no decision; stopped: no proxy
--     reports. States of a proxy: open; silent: it has not reported for 10 seconds; local: it decides without
--     the database; was open or was local: within the last hour; without a policy; wrong clock: by more than
--     a minute; behind; lost: settlements, within the last day, or units of a killed proxy, without a node;
--     unusable: a rule; problem. State of a time zone: unknown zone. State of the server: vacuum, see
--     rate_limit_vacuum_holders. States of a role: hidden, see rate_limit_hidden; exposed, see
--     rate_limit_exposed. State of a tier that users have and no rule limits: unlimited. States of prices:
--     prices, the age of the newest one if there are limits in money; unpriced: searches, sound or pictures
--     had the price of their neighbor, or none. These three are no reason for a warning.
--   node: The proxy of the sentence. NULL: all proxies, or a time zone, a role or a tier.
--   summary: The sentence.
--
-- A proxy enforces limits if it reports, makes decisions, and has a policy if other proxies have one. A
-- silent proxy counts for 10 minutes, because a proxy without the database may still run.
--
-- A proxy applies a change within a second, and a large change within five seconds, but reports the change
-- with its next heartbeat. The column behind is therefore rarely 0 while users are created all the time.
-- The state behind uses the column late instead, which is then 0.
CREATE OR REPLACE VIEW rate_limit_state WITH (security_invoker) AS
	WITH proxies AS (
		SELECT p.*, p.cannot IS NOT NULL OR coalesce(p.open_until > now() - interval '2 minutes', false)
				AS open,
			NOT p.policy AND bool_or(p.policy AND p.live) OVER () AS without_policy
		FROM rate_limit_proxies p
		WHERE p.live OR p.ended IS NULL AND p.seen > now() - interval '10 minutes'
	), problems AS (
		SELECT s.place, s.state, p.node, p.node || ' ' || s.text AS summary
		FROM proxies p CROSS JOIN LATERAL (VALUES
			(1, 'open', p.cannot IS NOT NULL, 'cannot decide: its role lacks privileges, and on_error says '
				'what becomes of requests. To grant them: ' || p.cannot),
			(2, 'silent', true, format('last reported at %s UTC: if it runs, it does not reach this '
				'database.', to_char(p.seen AT TIME ZONE 'UTC', 'HH24:MI:SS'))),
			(3, CASE WHEN p.open THEN 'open' ELSE 'was open' END,
				p.open_until > now() - interval '1 hour' AND (p.open OR p.open_passed > 0),
				format('had requests without a decision from %s until %s UTC: on_error let %s pass, and '
					'refused %s.', to_char(p.open_from AT TIME ZONE 'UTC', 'HH24:MI:SS'),
					to_char(p.open_until AT TIME ZONE 'UTC', 'HH24:MI:SS'), p.open_passed, p.open_refused)),
			(3, CASE WHEN p.local_until > now() - interval '2 minutes' THEN 'local' ELSE 'was local' END,
				p.local_until > now() - interval '1 hour',
				format('limited by itself, at its share of each limit, from %s until %s UTC.',
					to_char(p.local_from AT TIME ZONE 'UTC', 'HH24:MI:SS'),
					to_char(p.local_until AT TIME ZONE 'UTC', 'HH24:MI:SS'))),
			(4, 'without a policy', p.without_policy,
				'has no policy, and other proxies have one: no rule and no ban holds there.'),
			(5, 'wrong clock', abs(p.seconds_ahead) > 60, format('has a clock that is %s s %s the clock '
				'of the server: keys, rules, bans and prices begin and end there by that clock.',
				abs(p.seconds_ahead), CASE WHEN p.seconds_ahead > 0 THEN 'ahead of' ELSE 'behind' END)),
			(5, 'behind', p.policy AND p.late IS DISTINCT FROM 0, format('has yet to %s of the policy.',
				CASE WHEN p.late IS NULL THEN 'read the tables' WHEN p.late = 1 THEN 'apply 1 change'
				ELSE 'apply ' || p.late || ' changes' END))
		) AS s(place, state, holds, text) WHERE s.holds AND p.live = (s.state <> 'silent')
		UNION ALL
		SELECT 5, 'lost', p.node, format('%s has lost %s until %s UTC: what these requests cost is not '
			'charged.', p.node, CASE p.lost WHEN 1 THEN '1 settlement' ELSE p.lost || ' settlements' END,
			to_char(p.lost_at AT TIME ZONE 'UTC', 'HH24:MI:SS'))
		FROM rate_limit_proxies p WHERE p.lost_at > now() - interval '1 day'
		UNION ALL
		SELECT 5, 'lost', NULL, u.summary FROM rate_limit_lost_units() AS u
		UNION ALL
		SELECT 6, CASE WHEN problem LIKE 'rule %' THEN 'unusable' ELSE 'problem' END, p.node,
			format('%s has a problem: %s', p.node, problem)
		FROM proxies p, unnest(p.problems) AS problem WHERE p.live
		UNION ALL
		SELECT 7, 'unknown zone', NULL, format('The server does not know the time zone %s of %s: a limit '
				'has windows in UTC instead, and a user has windows in the zone of the limit.', z.zone,
			concat_ws(' and ', CASE z.users WHEN 0 THEN NULL WHEN 1 THEN '1 user'
				ELSE z.users || ' users' END, nullif(array_to_string(z.limits, ', '), '')))
		FROM rate_limit_unknown_zones() AS z
		UNION ALL
		SELECT 7, 'vacuum', NULL, v FROM rate_limit_vacuum_holders() AS v
		UNION ALL
		SELECT 8, 'hidden', NULL, h FROM rate_limit_hidden() AS h
		UNION ALL
		SELECT 8, 'exposed', NULL, e FROM rate_limit_exposed() AS e
		UNION ALL
		SELECT 9, 'unlimited', NULL, format('The tier %s has %s, and no rule limits it.', to_json(t.tier),
			CASE t.users WHEN 1 THEN '1 user' ELSE t.users || ' users' END) FROM rate_limit_unlimited() t
		UNION ALL
		SELECT 10, 'prices', NULL, a FROM rate_limit_price_age() AS a
		UNION ALL
		SELECT 10, 'periods', NULL, d FROM rate_limit_billing_differs() AS d
		UNION ALL
		SELECT 10, 'unpriced', NULL, format('The price %s has charged %s without a price of its own, in the '
			'last 7 days.', to_json(u.price), string_agg(u.part, ', ' ORDER BY u.part))
		FROM rate_limit_unpriced() u GROUP BY u.price
	)
	SELECT f.state, f.node, f.summary FROM (
		SELECT 0 AS place, CASE WHEN a.live = 0 THEN 'stopped' WHEN a.open THEN 'open'
				WHEN EXISTS (SELECT FROM problems s WHERE s.state NOT LIKE 'was %' AND s.place < 9)
					THEN 'warning'
				ELSE 'enforcing' END AS state, NULL::text AS node,
			concat(CASE a.live WHEN 0 THEN 'No proxy counts in this database'
				ELSE format('Limits are enforced by %s of %s', a.enforcing,
					CASE a.known WHEN 1 THEN '1 proxy' ELSE a.known || ' proxies' END) END,
				format(CASE a.known - a.live WHEN 0 THEN '' WHEN 1
					THEN '; %s has not reported for %s s: if it runs, its on_error setting decides there'
					ELSE '; %s have not reported for %s s or longer: where they run, their on_error settings '
						'decide' END, a.known - a.live, a.silence::bigint), '.') AS summary
		FROM (SELECT count(*) AS known, count(*) FILTER (WHERE p.live) AS live,
				count(*) FILTER (WHERE p.live AND NOT p.open AND NOT p.without_policy) AS enforcing,
				bool_or(p.open AND p.live) AS open, min(p.seconds_ago) FILTER (WHERE NOT p.live) AS silence
			FROM proxies p) AS a
		UNION ALL SELECT * FROM problems
	) AS f ORDER BY f.place, f.node, f.state;

-- TABLE rate_limit_secrets: Random texts that the proxies share. Clients must not see them.
--   name: The purpose. partition: to digest keys for the parameter pk of the header fields RateLimit and
--     RateLimit-Policy.
--   value: The secret.
