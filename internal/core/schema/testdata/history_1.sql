-- The tables of the history. rate_limit_audit has one partition for each day in UTC, see
-- history_partitions.sql. No table refers to a table of the policy: a rule or a user can be
-- deleted, and what happened stays.

CREATE TABLE IF NOT EXISTS rate_limit_audit (
	time           timestamptz NOT NULL,
	cost           bigint NOT NULL,
	count          bigint NOT NULL DEFAULT 1,
	quota          bigint,
	remaining      bigint,
	key_id         bigint,
	retry_after_ms bigint,
	duration_us    bigint NOT NULL,
	weight         double precision NOT NULL DEFAULT 1,
	status         integer,
	decision       text NOT NULL,
	reason         text,
	prefix         text NOT NULL,
	limit_name     text,
	key            text,
	user_id        text,
	tier           text,
	address        inet,
	host           text,
	method         text,
	path           text,
	node           text NOT NULL,
	region         text,
	also           text[],
	CONSTRAINT decision_must_be_allowed_limited_blocked_rejected_shadow_error
		CHECK (decision IN ('allowed', 'limited', 'blocked', 'rejected', 'shadow', 'error'))
) PARTITION BY RANGE (time);
CREATE INDEX IF NOT EXISTS rate_limit_audit_time ON rate_limit_audit USING brin (time) WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX IF NOT EXISTS rate_limit_audit_user ON rate_limit_audit (user_id, time) WHERE user_id IS NOT NULL;
COMMENT ON TABLE rate_limit_audit IS 'What happened to requests: a row for each decision that is recorded. A row of decision shadow stands beside the row of its request.';
COMMENT ON COLUMN rate_limit_audit.time IS 'When the request was decided, by the clock of the proxy.';
COMMENT ON COLUMN rate_limit_audit.cost IS 'What one request costs, or would have cost if it was refused.';
COMMENT ON COLUMN rate_limit_audit.count IS 'How many equal refusals within the same second this row stands for. The other columns are those of the first.';
COMMENT ON COLUMN rate_limit_audit.quota IS 'The full quota. NULL: no limit decided.';
COMMENT ON COLUMN rate_limit_audit.remaining IS 'What was left of the quota after the decision.';
COMMENT ON COLUMN rate_limit_audit.key_id IS 'The id of the API key in rate_limit_api_keys. NULL: none.';
COMMENT ON COLUMN rate_limit_audit.retry_after_ms IS 'Of a refusal: the time until the request would pass, in milliseconds. NULL: the request passed, it would never pass, or the time is not known.';
COMMENT ON COLUMN rate_limit_audit.duration_us IS 'How long the decision took, in microseconds.';
COMMENT ON COLUMN rate_limit_audit.weight IS 'How many requests each request of this row stands for: above 1 if only a sample is recorded. count * weight is the estimated number of requests.';
COMMENT ON COLUMN rate_limit_audit.status IS 'The status of a refusal. NULL: the request passed.';
COMMENT ON COLUMN rate_limit_audit.decision IS
	'allowed; limited: by a limit; blocked: by a ban or a block rule; rejected: the API key or the path is not valid; shadow: a shadow rule would have refused the request; error: no decision was possible.';
COMMENT ON COLUMN rate_limit_audit.reason IS 'More about a refusal: unknown_key, key_expired, key_revoked, ambiguous_path, banned, blocked, no_quota, timeout or unavailable.';
COMMENT ON COLUMN rate_limit_audit.prefix IS 'The prefix of the limit in a configuration, or rule/ and the name of a rule; empty if none applied. Of several limits, that with the least remaining, or the one that refused.';
COMMENT ON COLUMN rate_limit_audit.limit_name IS 'The name of the limit of the rule. NULL: a limit in a configuration.';
COMMENT ON COLUMN rate_limit_audit.key IS 'The key of the counter, as it is stored: a digest if it is a secret.';
COMMENT ON COLUMN rate_limit_audit.user_id IS 'The user. NULL: nobody.';
COMMENT ON COLUMN rate_limit_audit.tier IS 'The tier of the user, with a policy.';
COMMENT ON COLUMN rate_limit_audit.address IS 'The address of the client, or its network, as audit_address says.';
COMMENT ON COLUMN rate_limit_audit.host IS 'The host of the request.';
COMMENT ON COLUMN rate_limit_audit.method IS 'The method of the request.';
COMMENT ON COLUMN rate_limit_audit.path IS 'The path of the request without the query, up to 200 characters.';
COMMENT ON COLUMN rate_limit_audit.node IS 'The name of the proxy.';
COMMENT ON COLUMN rate_limit_audit.region IS 'The region of the proxy, if its configuration has one.';
COMMENT ON COLUMN rate_limit_audit.also IS 'The other limits that were asked about the request, whether they charged it or not: prefix, key, prefix, key and so on. NULL: none.';

CREATE TABLE IF NOT EXISTS rate_limit_metrics (
	granularity text NOT NULL,
	time        timestamptz NOT NULL,
	prefix      text NOT NULL,
	host        text NOT NULL,
	route       text NOT NULL,
	region      text NOT NULL,
	requests    bigint NOT NULL DEFAULT 0,
	allowed     bigint NOT NULL DEFAULT 0,
	limited     bigint NOT NULL DEFAULT 0,
	blocked     bigint NOT NULL DEFAULT 0,
	rejected    bigint NOT NULL DEFAULT 0,
	errors      bigint NOT NULL DEFAULT 0,
	shadow      bigint NOT NULL DEFAULT 0,
	cost        bigint NOT NULL DEFAULT 0,
	from_memory bigint NOT NULL DEFAULT 0,
	latency     bigint[] NOT NULL DEFAULT '{}',
	updated_at  timestamptz NOT NULL DEFAULT now(),
	CONSTRAINT rate_limit_metrics_pkey PRIMARY KEY (granularity, time, prefix, host, route, region),
	CONSTRAINT granularity_must_be_minute_hour_or_day CHECK (granularity IN ('minute', 'hour', 'day'))
);
CREATE INDEX IF NOT EXISTS rate_limit_metrics_updated ON rate_limit_metrics (granularity, updated_at);
COMMENT ON TABLE rate_limit_metrics IS 'Requests of all proxies by minute, added up. Hours and days are computed from the minutes.';
COMMENT ON COLUMN rate_limit_metrics.granularity IS 'minute, hour or day.';
COMMENT ON COLUMN rate_limit_metrics.time IS 'When the minute, hour or day (in UTC) begins.';
COMMENT ON COLUMN rate_limit_metrics.prefix IS 'As in rate_limit_audit.';
COMMENT ON COLUMN rate_limit_metrics.host IS 'The host of the requests; (other) for hosts beyond the first 100 of a proxy in a minute.';
COMMENT ON COLUMN rate_limit_metrics.route IS 'The name of the route, if the configuration gives one; (other) for routes beyond the first 100 of a proxy in a minute.';
COMMENT ON COLUMN rate_limit_metrics.region IS 'The region of the proxies, if their configuration has one.';
COMMENT ON COLUMN rate_limit_metrics.requests IS 'All requests: allowed, limited, blocked, rejected and errors together.';
COMMENT ON COLUMN rate_limit_metrics.allowed IS 'Requests that passed.';
COMMENT ON COLUMN rate_limit_metrics.limited IS 'Requests that a limit refused.';
COMMENT ON COLUMN rate_limit_metrics.blocked IS 'Requests that a ban or a block rule refused.';
COMMENT ON COLUMN rate_limit_metrics.rejected IS 'Requests that were refused for their API key or their path.';
COMMENT ON COLUMN rate_limit_metrics.errors IS 'Requests without a decision, whether they passed or not.';
COMMENT ON COLUMN rate_limit_metrics.shadow IS 'Decisions of shadow rules that would have refused. Their requests count in the other columns.';
COMMENT ON COLUMN rate_limit_metrics.cost IS 'The costs of the requests that passed.';
COMMENT ON COLUMN rate_limit_metrics.from_memory IS 'Requests of those limited that a proxy refused without asking the database.';
COMMENT ON COLUMN rate_limit_metrics.latency IS 'How many decisions took how long, in buckets: see rate_limit_percentile.';
COMMENT ON COLUMN rate_limit_metrics.updated_at IS 'When the row was last written.';

CREATE TABLE IF NOT EXISTS rate_limit_usage (
	day          date NOT NULL,
	user_id      text NOT NULL,
	key_id       bigint NOT NULL DEFAULT 0,
	requests     bigint NOT NULL DEFAULT 0,
	cost         bigint NOT NULL DEFAULT 0,
	refused      bigint NOT NULL DEFAULT 0,
	last_request timestamptz NOT NULL,
	CONSTRAINT rate_limit_usage_pkey PRIMARY KEY (user_id, day, key_id)
);
CREATE INDEX IF NOT EXISTS rate_limit_usage_day ON rate_limit_usage (day);
COMMENT ON TABLE rate_limit_usage IS 'What users and API keys did on a day. The sum over the keys is what the user did.';
COMMENT ON COLUMN rate_limit_usage.day IS 'The day in UTC.';
COMMENT ON COLUMN rate_limit_usage.user_id IS 'The user.';
COMMENT ON COLUMN rate_limit_usage.key_id IS 'The id of the API key; 0 for requests without one.';
COMMENT ON COLUMN rate_limit_usage.requests IS 'All requests, also those that were refused.';
COMMENT ON COLUMN rate_limit_usage.cost IS 'The costs of the requests that passed.';
COMMENT ON COLUMN rate_limit_usage.refused IS 'Requests that were refused.';
COMMENT ON COLUMN rate_limit_usage.last_request IS 'When the last request came.';

CREATE TABLE IF NOT EXISTS rate_limit_writers (
	writer  text NOT NULL CONSTRAINT rate_limit_writers_pkey PRIMARY KEY,
	node    text NOT NULL,
	region  text,
	batch   bigint NOT NULL,
	written bigint NOT NULL DEFAULT 0,
	dropped bigint NOT NULL DEFAULT 0,
	seen    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE rate_limit_writers IS 'The processes that write the history, and how far each of them is. A row that was not renewed for 30 days is deleted.';
COMMENT ON COLUMN rate_limit_writers.writer IS 'A random name of the process.';
COMMENT ON COLUMN rate_limit_writers.node IS 'The name of the proxy.';
COMMENT ON COLUMN rate_limit_writers.region IS 'Where it runs, if its configuration says so.';
COMMENT ON COLUMN rate_limit_writers.batch IS 'The number of the last batch that was written. A batch that is sent again after a failure is written once.';
COMMENT ON COLUMN rate_limit_writers.written IS 'How many decisions the process has written to rate_limit_audit.';
COMMENT ON COLUMN rate_limit_writers.dropped IS 'How many decisions the process could not write, because the database was slow or down for too long.';
COMMENT ON COLUMN rate_limit_writers.seen IS 'When the last batch was written.';

CREATE TABLE IF NOT EXISTS rate_limit_retention (
	what   text NOT NULL CONSTRAINT rate_limit_retention_pkey PRIMARY KEY,
	keep   interval NOT NULL,
	set_by text,
	set_at timestamptz NOT NULL DEFAULT now(),
	deleted_before timestamptz,
	upkeep_at timestamptz,
	CONSTRAINT what_must_be_audit_usage_or_metrics_of_minute_hour_or_day
		CHECK (what IN ('audit', 'metrics_minute', 'metrics_hour', 'metrics_day', 'usage')),
	CONSTRAINT keep_must_be_1_day_or_more CHECK (keep >= interval '1 day')
);
INSERT INTO rate_limit_retention (what, keep) VALUES ('audit', '90 days'), ('metrics_minute', '7 days'), ('metrics_hour', '90 days'), ('metrics_day', '7 years'), ('usage', '7 years')
	ON CONFLICT DO NOTHING;
COMMENT ON TABLE rate_limit_retention IS 'How long the history is kept. Upkeep deletes what is older. A proxy writes what its configuration says when it starts.';
COMMENT ON COLUMN rate_limit_retention.what IS 'audit, metrics_minute, metrics_hour, metrics_day or usage.';
COMMENT ON COLUMN rate_limit_retention.keep IS 'How long. Without a row for it, a part of the history is kept for ever.';
COMMENT ON COLUMN rate_limit_retention.set_by IS 'The proxy or the role that set it. NULL: the default.';
COMMENT ON COLUMN rate_limit_retention.set_at IS 'When it was set.';
COMMENT ON COLUMN rate_limit_retention.deleted_before IS 'Of metrics_minute, metrics_hour and metrics_day: upkeep has deleted what is older. NULL: nothing.';
COMMENT ON COLUMN rate_limit_retention.upkeep_at IS 'When upkeep last ran.';
-- The functions about the partitions of rate_limit_audit: one for each day in UTC, from midnight to
-- midnight, whatever the TimeZone of the session is.
--
-- A new partition is made as a table of its own and attached then. That takes a lock on
-- rate_limit_audit which writers do not wait for: CREATE TABLE … PARTITION OF would stop them. The
-- same lock keeps other processes from making the same partition. There is no DEFAULT partition,
-- because DETACH … CONCURRENTLY does not work with one.

CREATE OR REPLACE FUNCTION rate_limit_partitions() RETURNS TABLE (id oid, name text, begins timestamptz, ends timestamptz, pending boolean)
	LANGUAGE sql STABLE SET TimeZone = 'UTC' SET DateStyle = 'ISO' AS $$
	SELECT p.id, p.name, CASE p.first WHEN 'MINVALUE' THEN '-infinity' ELSE p.first END::timestamptz, CASE p.last WHEN 'MAXVALUE' THEN 'infinity' ELSE p.last END::timestamptz, p.pending
	FROM (SELECT c.oid AS id, format('%I.%I', n.nspname, c.relname) AS name, i.inhdetachpending AS pending,
			substring(pg_get_expr(c.relpartbound, c.oid) FROM 'FROM [(]''?([^'')]+)') AS first, substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO [(]''?([^'')]+)') AS last
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE i.inhparent = 'rate_limit_audit'::regclass) AS p
	ORDER BY 3
$$;
COMMENT ON FUNCTION rate_limit_partitions() IS
	'The partitions of rate_limit_audit: the oid, the name with the schema, the bounds, and whether the partition is pending detach, so that ALTER TABLE … DETACH PARTITION … FINALIZE is still to come.';

CREATE OR REPLACE FUNCTION rate_limit_make_partition(day date) RETURNS text LANGUAGE plpgsql SET TimeZone = 'UTC' AS $$
DECLARE
	space CONSTANT text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = 'rate_limit_audit'::regclass);
	name text;
	same record;
BEGIN
	IF day IS NULL OR day < date '0001-01-01' OR day > date '9999-12-31' THEN
		RAISE EXCEPTION 'day: %: must be a day from 0001-01-01 to 9999-12-31', coalesce(day::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
	END IF;
	FOR attempt IN 1..2 LOOP
		SELECT * INTO same FROM rate_limit_partitions() p WHERE p.begins <= day::timestamptz AND p.ends > day::timestamptz;
		IF same.pending THEN
			RAISE EXCEPTION 'the partition % is about to be detached: the day can have another one afterwards', same.name USING ERRCODE = 'object_in_use';
		ELSIF same.name IS NOT NULL THEN
			RETURN NULL;
		END IF;
		-- Another process may have made it before this one gets the lock.
		LOCK TABLE ONLY rate_limit_audit IN SHARE UPDATE EXCLUSIVE MODE;
	END LOOP;
	-- A table of the name that is not attached was detached by an archive or an interrupted upkeep.
	FOR n IN 1..1000 LOOP
		name := to_char(day, '"rate_limit_audit_"YYYYMMDD') || CASE n WHEN 1 THEN '' ELSE '_' || n END;
		EXIT WHEN to_regclass(space || '.' || name) IS NULL;
	END LOOP;
	EXECUTE format('CREATE TABLE %s.%s (LIKE rate_limit_audit INCLUDING ALL)', space, name);
	EXECUTE format('ALTER TABLE rate_limit_audit ATTACH PARTITION %s.%s FOR VALUES FROM (%L) TO (%L)', space, name, day::timestamptz, (day + 1)::timestamptz);
	RETURN space || '.' || name;
EXCEPTION WHEN duplicate_table OR invalid_object_definition THEN
	-- The snapshot of a transaction that is REPEATABLE READ does not show the other's partition.
	IF current_setting('transaction_isolation') = 'read committed' THEN
		RAISE;
	END IF;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_make_partition(date) IS
	'Makes the partition of rate_limit_audit for a day in UTC, and returns its name with the schema; NULL: there is one already. Writers go on meanwhile. A partition is named rate_limit_audit_YYYYMMDD, or with _2 behind it if a table of that name is there that was detached.';
-- rate_limit_rollup adds up the minutes of rate_limit_metrics to hours, and the hours to days.
--
-- An hour is computed anew from all of its minutes, so running it twice changes nothing. Which
-- hours are due follows from updated_at: a minute that was written after the last run makes its
-- hour due. A transaction that was open during the last run has an updated_at before it, hence the
-- overlap. Where upkeep has deleted minutes, nothing is computed anew: see deleted_before.

CREATE OR REPLACE FUNCTION rate_limit_add_buckets(a bigint[], b bigint[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT coalesce(array_agg(coalesce(t.x, 0) + coalesce(t.y, 0) ORDER BY t.i), '{}') FROM unnest(a, b) WITH ORDINALITY AS t(x, y, i));
COMMENT ON FUNCTION rate_limit_add_buckets(bigint[], bigint[]) IS 'The sum of two arrays, element by element. The shorter one is continued with zeros.';
CREATE OR REPLACE AGGREGATE rate_limit_sum(bigint[]) (SFUNC = rate_limit_add_buckets, STYPE = bigint[], INITCOND = '{}', COMBINEFUNC = rate_limit_add_buckets, PARALLEL = SAFE);
COMMENT ON AGGREGATE rate_limit_sum(bigint[]) IS 'The sum of arrays, element by element: of the latencies of several rows of rate_limit_metrics.';

CREATE OR REPLACE FUNCTION rate_limit_percentile(buckets bigint[], p double precision) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT CASE u.i WHEN 1 THEN 0.001 ELSE power(1.04::double precision, u.i - 1) * 2 / 2.04 / 1000 END
	FROM (SELECT i, n, sum(n) OVER (ORDER BY i) AS upto, sum(n) OVER () AS total FROM unnest(buckets) WITH ORDINALITY AS b(n, i)) AS u
	WHERE u.n > 0 AND u.upto >= least(greatest(ceil(p * u.total::double precision), 1), u.total::double precision) ORDER BY u.i LIMIT 1);
COMMENT ON FUNCTION rate_limit_percentile(bigint[], double precision) IS
	'The time in milliseconds that the share p (0.95 for p95) of the decisions took at most, wrong by 2 % at most; NULL: there are no decisions. Element 1 of the buckets counts decisions of up to 1 µs, element i + 1 those from 1.04^(i-1) to 1.04^i µs, up to element 512. Buckets of several rows can be added with rate_limit_sum.';

CREATE OR REPLACE VIEW rate_limit_traffic AS
	SELECT m.*, rate_limit_percentile(m.latency, 0.5) AS p50_ms, rate_limit_percentile(m.latency, 0.95) AS p95_ms, rate_limit_percentile(m.latency, 0.99) AS p99_ms FROM rate_limit_metrics m;
COMMENT ON VIEW rate_limit_traffic IS 'rate_limit_metrics with percentiles of the time that decisions took.';
DO $$
DECLARE
	described record;
BEGIN
	FOR described IN SELECT a.attname, coalesce(col_description('rate_limit_metrics'::regclass, t.attnum), 'What ' || replace(substring(a.attname FROM 2), '_ms', '') || ' % of the decisions took at most, in milliseconds.') AS description
		FROM pg_attribute a LEFT JOIN pg_attribute t ON t.attrelid = 'rate_limit_metrics'::regclass AND t.attname = a.attname WHERE a.attrelid = 'rate_limit_traffic'::regclass AND a.attnum > 0
	LOOP
		EXECUTE format('COMMENT ON COLUMN rate_limit_traffic.%I IS %L', described.attname, described.description);
	END LOOP;
END $$;

CREATE OR REPLACE FUNCTION rate_limit_rollup() RETURNS TABLE (hours bigint, days bigint) LANGUAGE plpgsql SET TimeZone = 'UTC' AS $$
DECLARE
	overlap CONSTANT interval := '10 min';
	step record;
	changed bigint;
BEGIN
	PERFORM pg_advisory_xact_lock(1885827693, ('rate_limit_audit'::regclass::oid::bigint - 2147483648)::int);
	FOR step IN SELECT * FROM (VALUES ('minute', 'hour'), ('hour', 'day')) AS s(source, target) LOOP
		INSERT INTO rate_limit_metrics AS m (granularity, time, prefix, host, route, region, requests, allowed, limited, blocked, rejected, errors, shadow, cost, from_memory, latency)
		SELECT step.target, date_trunc(step.target, s.time), s.prefix, s.host, s.route, s.region, sum(s.requests), sum(s.allowed), sum(s.limited), sum(s.blocked), sum(s.rejected),
			sum(s.errors), sum(s.shadow), least(sum(s.cost), 9223372036854775807), sum(s.from_memory), rate_limit_sum(s.latency)
		FROM (SELECT DISTINCT date_trunc(step.target, c.time) AS time, c.prefix, c.host, c.route, c.region FROM rate_limit_metrics c
				WHERE c.granularity = step.source
				AND c.updated_at >= coalesce((SELECT max(o.updated_at) FROM rate_limit_metrics o WHERE o.granularity = step.target) - overlap, '-infinity')
				AND c.time >= coalesce((SELECT max(r.deleted_before) FROM rate_limit_retention r WHERE r.what IN ('metrics_' || step.source, 'metrics_' || step.target)), '-infinity')) AS due
			JOIN rate_limit_metrics s ON s.granularity = step.source AND s.time >= due.time AND s.time < due.time + ('1 ' || step.target)::interval
				AND s.prefix = due.prefix AND s.host = due.host AND s.route = due.route AND s.region = due.region
		GROUP BY 2, 3, 4, 5, 6
		ORDER BY 2, 3, 4, 5, 6
		ON CONFLICT (granularity, time, prefix, host, route, region) DO UPDATE SET requests = excluded.requests, allowed = excluded.allowed, limited = excluded.limited,
			blocked = excluded.blocked, rejected = excluded.rejected, errors = excluded.errors, shadow = excluded.shadow, cost = excluded.cost, from_memory = excluded.from_memory,
			latency = excluded.latency, updated_at = now()
		WHERE (m.requests, m.allowed, m.limited, m.blocked, m.rejected, m.errors, m.shadow, m.cost, m.from_memory, m.latency)
			IS DISTINCT FROM (excluded.requests, excluded.allowed, excluded.limited, excluded.blocked, excluded.rejected, excluded.errors, excluded.shadow, excluded.cost, excluded.from_memory, excluded.latency);
		GET DIAGNOSTICS changed = ROW_COUNT;
		IF step.target = 'hour' THEN
			hours := changed;
		ELSE
			days := changed;
		END IF;
	END LOOP;
	RETURN NEXT;
END $$;
COMMENT ON FUNCTION rate_limit_rollup() IS 'Computes the hours and days of rate_limit_metrics whose minutes have changed, and returns how many rows it wrote. rate_limit_upkeep does the same.';
-- The functions with which a proxy writes the history. A batch is one transaction:
-- rate_limit_begin_batch, and then the others. All of them write their rows in the order of the
-- primary key, so that two proxies do not wait for each other in a circle.
--
-- Arrays have no NULL: a driver sends text[] and bigint[] without. An empty text is NULL, and so is
-- a number that cannot be: 0 of quota, key_id and status, below 0 of retry_after_ms.

CREATE OR REPLACE FUNCTION rate_limit_begin_batch(writer text, node text, region text, batch bigint, written bigint, dropped bigint) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	-- A connection on which decisions wait, too, must not wait long for a row that a session has locked.
	PERFORM set_config('lock_timeout', '1s', true);
	INSERT INTO rate_limit_writers AS w (writer, node, region, batch, written, dropped, seen) VALUES ($1, $2, nullif($3, ''), $4, $5, $6, now())
	ON CONFLICT (writer) DO UPDATE SET node = excluded.node, region = excluded.region, batch = excluded.batch, written = excluded.written, dropped = excluded.dropped, seen = excluded.seen
		WHERE w.batch < excluded.batch;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'batch % of this writer is written already', $4 USING ERRCODE = 'unique_violation';
	END IF;
END $$;
COMMENT ON FUNCTION rate_limit_begin_batch IS
	'The first statement of a transaction that writes a batch. It fails with unique_violation if the batch, or a later one, is written: a batch with an unknown outcome can be sent again. The transaction waits for a lock for 1 s at most. written and dropped are totals.';

CREATE OR REPLACE FUNCTION rate_limit_record_audit(node text, region text, times bigint[], decisions text[], reasons text[], prefixes text[], limits text[],
	keys text[], users text[], tiers text[], addresses text[], hosts text[], methods text[], paths text[], alsos text[], costs bigint[], counts bigint[],
	quotas bigint[], remainings bigint[], key_ids bigint[], retries bigint[], durations bigint[], statuses bigint[], weights text[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	FOR attempt IN 1..2 LOOP
		BEGIN
			INSERT INTO rate_limit_audit (time, cost, count, quota, remaining, key_id, retry_after_ms, duration_us, weight, status, decision, reason, prefix, limit_name, key,
				user_id, tier, address, host, method, path, node, region, also)
			SELECT timestamptz 'epoch' + r.t * interval '1 microsecond', r.cost, r.n, nullif(r.quota, 0), CASE WHEN r.quota <> 0 THEN r.remaining END, nullif(r.key_id, 0),
				CASE WHEN r.retry >= 0 THEN r.retry END, r.duration, r.weight::double precision, nullif(r.status, 0), r.decision, nullif(r.reason, ''), r.prefix,
				nullif(r.limit_name, ''), nullif(r.key, ''), nullif(r.user_id, ''), nullif(r.tier, ''), nullif(r.address, '')::inet, nullif(r.host, ''),
				nullif(r.method, ''), nullif(r.path, ''), $1, nullif($2, ''), nullif(r.also, '')::text[]
			FROM unnest($3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)
				AS r(t, decision, reason, prefix, limit_name, key, user_id, tier, address, host, method, path, also, cost, n, quota, remaining, key_id, retry, duration, status, weight);
			RETURN;
		EXCEPTION WHEN check_violation THEN
			IF attempt = 2 THEN
				RAISE;
			END IF;
			PERFORM rate_limit_make_partition(d.day) FROM (
				SELECT DISTINCT ((timestamptz 'epoch' + t * interval '1 microsecond') AT TIME ZONE 'UTC')::date AS day FROM unnest($3) AS t ORDER BY day) d;
		END;
	END LOOP;
END $$;
COMMENT ON FUNCTION rate_limit_record_audit IS 'Writes rows of rate_limit_audit, and makes the partitions that they need. Times are microseconds since 1970.';

CREATE OR REPLACE FUNCTION rate_limit_record_metrics(region text, times bigint[], prefixes text[], hosts text[], routes text[], alloweds bigint[], limiteds bigint[],
	blockeds bigint[], rejecteds bigint[], failures bigint[], shadows bigint[], costs bigint[], memories bigint[], latencies text[]) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	INSERT INTO rate_limit_metrics AS m (granularity, time, prefix, host, route, region, requests, allowed, limited, blocked, rejected, errors, shadow, cost, from_memory, latency, updated_at)
	SELECT 'minute', timestamptz 'epoch' + r.t * interval '1 minute', r.prefix, r.host, r.route, $1, r.allowed + r.limited + r.blocked + r.rejected + r.errors,
		r.allowed, r.limited, r.blocked, r.rejected, r.errors, r.shadow, r.cost, r.memory, r.latency::bigint[], now()
	FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
		AS r(t, prefix, host, route, allowed, limited, blocked, rejected, errors, shadow, cost, memory, latency)
	ORDER BY 2, 3, 4, 5
	ON CONFLICT (granularity, time, prefix, host, route, region) DO UPDATE SET requests = m.requests + excluded.requests, allowed = m.allowed + excluded.allowed,
		limited = m.limited + excluded.limited, blocked = m.blocked + excluded.blocked, rejected = m.rejected + excluded.rejected, errors = m.errors + excluded.errors,
		shadow = m.shadow + excluded.shadow, cost = least(m.cost::numeric + excluded.cost, 9223372036854775807), from_memory = m.from_memory + excluded.from_memory,
		latency = rate_limit_add_buckets(m.latency, excluded.latency), updated_at = excluded.updated_at;
END $$;
COMMENT ON FUNCTION rate_limit_record_metrics IS 'Adds to the minutes of rate_limit_metrics. Times are minutes since 1970. No minute is there twice.';

CREATE OR REPLACE FUNCTION rate_limit_record_usage(days bigint[], users text[], key_ids bigint[], requests bigint[], costs bigint[], refusals bigint[], lasts bigint[])
	RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	INSERT INTO rate_limit_usage AS u (day, user_id, key_id, requests, cost, refused, last_request)
	SELECT date '1970-01-01' + r.day::int, r.user_id, r.key_id, r.requests, r.cost, r.refused, timestamptz 'epoch' + r.last * interval '1 microsecond'
	FROM unnest($1, $2, $3, $4, $5, $6, $7) AS r(day, user_id, key_id, requests, cost, refused, last)
	ORDER BY 2, 1, 3
	ON CONFLICT (user_id, day, key_id) DO UPDATE SET requests = u.requests + excluded.requests, cost = least(u.cost::numeric + excluded.cost, 9223372036854775807), refused = u.refused + excluded.refused,
		last_request = greatest(u.last_request, excluded.last_request);
END $$;
COMMENT ON FUNCTION rate_limit_record_usage IS 'Adds to the rows of rate_limit_usage. Days are days since 1970, times are microseconds since 1970. No user, day and key is there twice.';

CREATE OR REPLACE FUNCTION rate_limit_retain(what text, keep text, set_by text) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	INSERT INTO rate_limit_retention AS r (what, keep, set_by, set_at) VALUES ($1, $2::interval, nullif($3, ''), now())
	ON CONFLICT (what) DO UPDATE SET keep = excluded.keep, set_by = excluded.set_by, set_at = excluded.set_at WHERE r.keep <> excluded.keep;
END $$;
COMMENT ON FUNCTION rate_limit_retain IS 'Sets how long a part of the history is kept. keep is an interval.';
-- The functions that delete what is past its retention. A caller may pass a time that is still to
-- come only if it has the rights of the owner: the role of the proxies may run the functions, and
-- must not be able to delete what is to be kept.
--
-- rate_limit_upkeep takes no lock that stops a reader or a writer, so it removes no partition: that
-- is for rate_limit_drop_expired, or for history.Upkeep, which uses DETACH … CONCURRENTLY.

CREATE OR REPLACE FUNCTION rate_limit_cutoff(what text, now timestamptz) RETURNS timestamptz LANGUAGE plpgsql STABLE SET TimeZone = 'UTC' AS $$
DECLARE
	caller CONSTANT text := CASE WHEN current_setting('role') = 'none' THEN session_user ELSE current_setting('role') END;
	owner CONSTANT oid := (SELECT relowner FROM pg_class WHERE oid = 'rate_limit_retention'::regclass);
BEGIN
	RETURN (SELECT CASE WHEN pg_has_role(caller, owner, 'USAGE') THEN $2 ELSE least($2, pg_catalog.now()) END - least(r.keep, interval '1000 years')
		FROM rate_limit_retention r WHERE r.what = $1);
END $$;
COMMENT ON FUNCTION rate_limit_cutoff(text, timestamptz) IS 'The time before which a part of the history (what) is past its retention, seen from a time (now). NULL: it is kept for ever. For a role other than the owner of the tables, now is at most the present.';

CREATE OR REPLACE FUNCTION rate_limit_holders(relation oid) RETURNS text LANGUAGE sql STABLE AS $$
	SELECT string_agg(DISTINCT coalesce('pid ' || l.pid, 'a prepared transaction'), ', ') FROM pg_locks l
	WHERE l.locktype = 'relation' AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) AND l.relation = $1
		AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
$$;
COMMENT ON FUNCTION rate_limit_holders(oid) IS 'The other sessions that have a lock on a table, as text. NULL: none.';

CREATE OR REPLACE FUNCTION rate_limit_expired(now timestamptz DEFAULT now()) RETURNS TABLE (name text, state text, held_by text) LANGUAGE sql STABLE SET TimeZone = 'UTC' AS $$
	WITH found AS (
		SELECT p.id, p.name, CASE WHEN p.pending THEN 'pending' ELSE 'attached' END AS state, p.ends FROM rate_limit_partitions() p
		UNION ALL
		SELECT c.oid, format('%I.%I', n.nspname, c.relname), 'detached', (to_date(substring(c.relname FROM 18 FOR 6), 'YYYYMM') + substring(c.relname FROM 24 FOR 2)::int)::timestamptz
		FROM pg_class c JOIN pg_class audit ON audit.oid = 'rate_limit_audit'::regclass AND audit.relnamespace = c.relnamespace AND audit.relowner = c.relowner
			JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'r' AND NOT c.relispartition AND c.relname ~ '^rate_limit_audit_[0-9]{4}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])(_[0-9]{1,4})?$')
	SELECT f.name, f.state, rate_limit_holders(f.id)
	FROM found f WHERE f.ends <= rate_limit_cutoff('audit', $1)
	ORDER BY CASE f.state WHEN 'pending' THEN 1 WHEN 'attached' THEN 2 ELSE 3 END, f.ends, f.name
$$;
COMMENT ON FUNCTION rate_limit_expired(timestamptz) IS
	'The partitions of rate_limit_audit that are past their retention at a time, and the sessions that use each of them. state is attached; detached: a table that was a partition; or pending: DETACH … FINALIZE is still to come.';

CREATE OR REPLACE FUNCTION rate_limit_drop_expired(now timestamptz DEFAULT now()) RETURNS TABLE (name text, held_by text) LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
#variable_conflict use_column
DECLARE
	expired record;
	busy text;
	locked boolean := false;
BEGIN
	IF NOT pg_try_advisory_xact_lock(1885827693, ('rate_limit_audit'::regclass::oid::bigint - 2147483648)::int) THEN
		RETURN;
	END IF;
	FOR expired IN SELECT e.* FROM rate_limit_expired($1) e LOOP
		name := expired.name;
		held_by := expired.held_by;
		IF held_by IS NULL AND expired.state <> 'detached' AND NOT locked THEN
			BEGIN
				-- Writers wait behind this lock, hence for a short time only, and once.
				IF busy IS NULL THEN
					LOCK TABLE ONLY rate_limit_audit IN ACCESS EXCLUSIVE MODE;
					locked := true;
				END IF;
			EXCEPTION WHEN lock_not_available THEN
				busy := coalesce(rate_limit_holders('rate_limit_audit'::regclass), 'another session') || ' by way of rate_limit_audit';
			END;
			held_by := busy;
		END IF;
		IF held_by IS NULL THEN
			BEGIN
				EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE NOWAIT', expired.name);
				EXECUTE format('DROP TABLE %s', expired.name);
			EXCEPTION WHEN lock_not_available THEN
				held_by := 'another session';
			WHEN dependent_objects_still_exist THEN
				held_by := SQLERRM;
			WHEN undefined_table THEN
				CONTINUE;
			END;
		END IF;
		RETURN NEXT;
	END LOOP;
END $$;
COMMENT ON FUNCTION rate_limit_drop_expired(timestamptz) IS
	'Drops the partitions of rate_limit_audit that are past their retention, except for those that something else uses: held_by. Writers wait for up to 100 ms. For pg_cron, and for proxies whose role does not own the tables.';

CREATE OR REPLACE FUNCTION rate_limit_upkeep(now timestamptz DEFAULT now(), pause interval DEFAULT '0') RETURNS TABLE (what text, name text, rows bigint) LANGUAGE plpgsql SET TimeZone = 'UTC' SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
	most CONSTANT int := 20000;
	part record;
	cutoff timestamptz;
	rolled record;
BEGIN
	IF NOT pg_try_advisory_xact_lock(1885827693, ('rate_limit_audit'::regclass::oid::bigint - 2147483648)::int)
		OR EXISTS (SELECT FROM rate_limit_retention r WHERE r.upkeep_at > pg_catalog.now() - pause AND r.upkeep_at <= pg_catalog.now() AND pause > '0') THEN
		what := 'busy';
		RETURN NEXT;
		RETURN;
	END IF;
	FOR ahead IN 0..7 LOOP
		BEGIN
			name := rate_limit_make_partition($1::date + ahead);
		EXCEPTION WHEN object_in_use THEN
			CONTINUE; -- pending detach, and made by a later run
		WHEN lock_not_available THEN
			what := 'skipped';
			name := 'rate_limit_audit';
			RETURN NEXT;
			EXIT;
		END;
		IF name IS NOT NULL THEN
			what := 'made';
			RETURN NEXT;
		END IF;
	END LOOP;

	BEGIN
		SELECT * INTO rolled FROM rate_limit_rollup();
		RETURN QUERY VALUES ('rolled_up', 'hour', rolled.hours), ('rolled_up', 'day', rolled.days);
	EXCEPTION WHEN lock_not_available THEN
		-- Another session has locked rows. Without a roll-up, no minute may be deleted.
		what := 'skipped';
		name := 'rate_limit_metrics';
		RETURN NEXT;
	END;

	FOR part IN SELECT * FROM (VALUES ('minute', 'hour'), ('hour', 'day'), ('day', 'day')) AS p(granularity, whole) LOOP
		EXIT WHEN rolled IS NULL;
		what := 'deleted';
		name := 'metrics_' || part.granularity;
		cutoff := date_trunc(part.whole, rate_limit_cutoff(name, $1));
		UPDATE rate_limit_retention r SET deleted_before = cutoff WHERE r.what = 'metrics_' || part.granularity AND cutoff > coalesce(r.deleted_before, '-infinity')
			AND EXISTS (SELECT FROM rate_limit_metrics m WHERE m.granularity = part.granularity AND m.time < cutoff);
		DELETE FROM rate_limit_metrics d USING (SELECT m.granularity, m.time, m.prefix, m.host, m.route, m.region FROM rate_limit_metrics m
				WHERE m.granularity = part.granularity AND m.time < cutoff ORDER BY m.time, m.prefix, m.host, m.route, m.region LIMIT most FOR UPDATE SKIP LOCKED) AS old
			WHERE (d.granularity, d.time, d.prefix, d.host, d.route, d.region) = (old.granularity, old.time, old.prefix, old.host, old.route, old.region);
		GET DIAGNOSTICS rows = ROW_COUNT;
		RETURN NEXT;
	END LOOP;

	what := 'deleted';
	name := 'usage';
	cutoff := rate_limit_cutoff(name, $1);
	DELETE FROM rate_limit_usage d USING (SELECT u.user_id, u.day, u.key_id FROM rate_limit_usage u WHERE u.day < cutoff::date LIMIT most FOR UPDATE SKIP LOCKED) AS old
		WHERE (d.user_id, d.day, d.key_id) = (old.user_id, old.day, old.key_id);
	GET DIAGNOSTICS rows = ROW_COUNT;
	RETURN NEXT;

	name := 'writers';
	DELETE FROM rate_limit_writers d USING (SELECT w.writer FROM rate_limit_writers w WHERE w.seen < least($1, pg_catalog.now()) - interval '30 days' LIMIT most FOR UPDATE SKIP LOCKED) AS old
		WHERE d.writer = old.writer;
	GET DIAGNOSTICS rows = ROW_COUNT;
	RETURN NEXT;

	UPDATE rate_limit_retention r SET upkeep_at = pg_catalog.now() FROM (SELECT f.what FROM rate_limit_retention f FOR UPDATE SKIP LOCKED) AS free WHERE r.what = free.what;
END $$;
COMMENT ON FUNCTION rate_limit_upkeep IS
	'Makes the partitions of rate_limit_audit for today and 7 more days, rolls up the metrics, and deletes metrics and usage that are past their retention: up to 20,000 rows of each kind in a run. It waits for a lock for 1 s at most. It returns what it did; skipped, and a table that another session has locked; or busy: another process does it, or has done it within the pause. For pg_cron; one of the proxies runs it about once a minute. For partitions that are past their retention there is rate_limit_drop_expired.';
-- The last commands of the history. They fix the search_path of the functions to the schema in
-- which they lie, and give them the rights of the owner of the tables in the same command: see
-- policy_end.sql.

DO $$
DECLARE
	function record;
BEGIN
	FOR function IN SELECT p.oid::regprocedure AS signature FROM pg_proc p WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
		AND p.proname IN ('rate_limit_begin_batch', 'rate_limit_record_audit', 'rate_limit_record_metrics', 'rate_limit_record_usage', 'rate_limit_retain',
			'rate_limit_partitions', 'rate_limit_make_partition', 'rate_limit_cutoff', 'rate_limit_rollup', 'rate_limit_upkeep', 'rate_limit_holders', 'rate_limit_expired', 'rate_limit_drop_expired')
	LOOP
		EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, %I, pg_temp', function.signature, current_schema());
		EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', function.signature);
	END LOOP;
END $$;

-- The number grows with every change of the history, so that proxies of different versions on one
-- database leave the newest schema as it is.
CREATE OR REPLACE FUNCTION rate_limit_history_version() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 1';
COMMENT ON FUNCTION rate_limit_history_version() IS 'The version of the tables of the history. The last command of the migration makes it.';
