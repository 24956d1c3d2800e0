-- rate_limit_rollup adds up the minutes of rate_limit_metrics to hours, and the hours to days.
--
-- An hour is computed from all of its minutes, so a second run changes nothing. Which
-- hours are due follows from updated_at: a minute that was written after the last run makes its
-- hour due. A transaction that was open during the last run has an updated_at before it, hence the
-- overlap. Where upkeep has deleted minutes, nothing is computed anew: see deleted_before.

CREATE OR REPLACE FUNCTION rate_limit_add(a numeric, b bigint) RETURNS bigint
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN least(a + b, 9223372036854775807);
COMMENT ON FUNCTION rate_limit_add(numeric, bigint) IS
	'The sum of two numbers, or the largest bigint, so that no number that a proxy sends makes a '
	'later sum fail.';

CREATE OR REPLACE FUNCTION rate_limit_add_buckets(a bigint[], b bigint[]) RETURNS bigint[]
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT coalesce(array_agg(rate_limit_add(coalesce(t.x, 0), coalesce(t.y, 0)) ORDER BY t.i), '{}')
	FROM unnest(a, b) WITH ORDINALITY AS t(x, y, i));
COMMENT ON FUNCTION rate_limit_add_buckets(bigint[], bigint[]) IS
	'The sum of two arrays, element by element. The shorter one is continued with zeros.';
CREATE OR REPLACE AGGREGATE rate_limit_sum(bigint[]) (SFUNC = rate_limit_add_buckets, STYPE = bigint[],
	INITCOND = '{}', COMBINEFUNC = rate_limit_add_buckets, PARALLEL = SAFE);
COMMENT ON AGGREGATE rate_limit_sum(bigint[]) IS
	'The sum of arrays, element by element: of the latencies of several rows of rate_limit_metrics.';

CREATE OR REPLACE FUNCTION rate_limit_percentile(buckets bigint[], p double precision)
	RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT 0.1 * power(2::double precision, least(u.i, 20) - 1) * (1 - CASE WHEN u.i = 1 THEN 1
	WHEN u.i <= 20 THEN 0.5 ELSE 0 END * (u.upto - u.rank) / u.n)
	FROM (SELECT b.i, b.n, sum(b.n) OVER (ORDER BY b.i)::double precision AS upto,
			least(greatest(ceil(p * sum(b.n) OVER ()), 1), sum(b.n) OVER ())::double precision AS rank
		FROM unnest(buckets) WITH ORDINALITY AS b(n, i)) AS u
	WHERE u.n > 0 AND u.upto >= u.rank ORDER BY u.i LIMIT 1);
COMMENT ON FUNCTION rate_limit_percentile(bigint[], double precision) IS
	'The time in milliseconds that the share p (0.95 for p95) of the decisions took at most, interpolated '
	'between two bounds: the exact time is between the same two, so that a result above 0.1 is at most twice '
	'or half of it. Element 1 of the buckets counts decisions of up to 0.1 ms, element i those of up to 0.1 '
	'* 2^(i-1) ms, up to element 20, and element 21 those of more than 52 s, for which the result is '
	'52428.8. NULL: there are no decisions. Buckets of several rows can be added with rate_limit_sum.';

CREATE OR REPLACE VIEW rate_limit_traffic AS
	SELECT m.granularity, m.time, m.prefix, m.host, m.route, m.region, m.requests, m.allowed, m.limited,
		m.blocked, m.rejected, m.errors, m.shadow, m.cost, m.from_memory, m.latency,
		m.updated_at, rate_limit_percentile(m.latency, 0.5) AS p50_ms, rate_limit_percentile(m.latency, 0.95)
			AS p95_ms, rate_limit_percentile(m.latency, 0.99) AS p99_ms,
		m.from_lease, m.from_database FROM rate_limit_metrics m;
COMMENT ON VIEW rate_limit_traffic IS 'rate_limit_metrics with percentiles of the time that decisions took.';
DO $$
DECLARE
	described record;
BEGIN
	FOR described IN SELECT a.attname, coalesce(col_description('rate_limit_metrics'::regclass, t.attnum),
		'What ' || replace(substring(a.attname FROM 2), '_ms', '') ||
		' % of the decisions took at most, in milliseconds.') AS description
		FROM pg_attribute a LEFT JOIN pg_attribute t ON t.attrelid = 'rate_limit_metrics'::regclass
			AND t.attname = a.attname WHERE a.attrelid = 'rate_limit_traffic'::regclass AND a.attnum > 0
	LOOP
		EXECUTE format('COMMENT ON COLUMN rate_limit_traffic.%I IS %L', described.attname,
			described.description);
	END LOOP;
END $$;

CREATE OR REPLACE FUNCTION rate_limit_rollup() RETURNS TABLE (hours bigint, days bigint) LANGUAGE plpgsql
	SET TimeZone = 'UTC' AS $$
DECLARE
	overlap CONSTANT interval := '10 min';
	step record;
	changed bigint;
BEGIN
	PERFORM pg_advisory_xact_lock(1885827693, ('rate_limit_audit'::regclass::oid::bigint - 2147483648)::int);
	FOR step IN SELECT * FROM (VALUES ('minute', 'hour'), ('hour', 'day')) AS s(source, target) LOOP
		INSERT INTO rate_limit_metrics AS m (granularity, time, prefix, host, route, region, requests,
			allowed, limited, blocked, rejected, errors, shadow, cost, from_memory, latency,
			from_lease, from_database)
		SELECT step.target, date_trunc(step.target, s.time), s.prefix, s.host, s.route, s.region,
			rate_limit_add(sum(s.requests), 0), rate_limit_add(sum(s.allowed), 0),
			rate_limit_add(sum(s.limited), 0), rate_limit_add(sum(s.blocked), 0),
			rate_limit_add(sum(s.rejected), 0),
			rate_limit_add(sum(s.errors), 0), rate_limit_add(sum(s.shadow), 0),
				rate_limit_add(sum(s.cost), 0), rate_limit_add(sum(s.from_memory), 0),
				rate_limit_sum(s.latency),
			rate_limit_add(sum(s.from_lease), 0), rate_limit_add(sum(s.from_database), 0)
		FROM (SELECT DISTINCT date_trunc(step.target, c.time) AS time, c.prefix, c.host, c.route, c.region
			FROM rate_limit_metrics c
				WHERE c.granularity = step.source
				AND c.updated_at >= coalesce((SELECT max(o.updated_at) FROM rate_limit_metrics o
					WHERE o.granularity = step.target) - overlap, '-infinity')
				AND c.time >= coalesce((SELECT max(r.deleted_before) FROM rate_limit_retention r
					WHERE r.what IN ('metrics_' || step.source, 'metrics_' || step.target)),
					'-infinity')) AS due
			JOIN rate_limit_metrics s ON s.granularity = step.source AND s.time >= due.time
				AND s.time < due.time + ('1 ' || step.target)::interval
				AND s.prefix = due.prefix AND s.host = due.host AND s.route = due.route
					AND s.region = due.region
		GROUP BY 2, 3, 4, 5, 6
		ORDER BY 2, 3, 4, 5, 6
		ON CONFLICT (granularity, time, prefix, host, route, region) DO UPDATE
			SET requests = excluded.requests, allowed = excluded.allowed, limited = excluded.limited,
			blocked = excluded.blocked, rejected = excluded.rejected, errors = excluded.errors,
				shadow = excluded.shadow, cost = excluded.cost, from_memory = excluded.from_memory,
			latency = excluded.latency, updated_at = now(), from_lease = excluded.from_lease,
				from_database = excluded.from_database
		WHERE (m.requests, m.allowed, m.limited, m.blocked, m.rejected, m.errors, m.shadow, m.cost,
			m.from_memory, m.latency, m.from_lease, m.from_database)
			IS DISTINCT FROM (excluded.requests, excluded.allowed, excluded.limited, excluded.blocked,
				excluded.rejected, excluded.errors, excluded.shadow, excluded.cost, excluded.from_memory,
				excluded.latency, excluded.from_lease,
				excluded.from_database);
		GET DIAGNOSTICS changed = ROW_COUNT;
		IF step.target = 'hour' THEN
			hours := changed;
		ELSE
			days := changed;
		END IF;
	END LOOP;
	RETURN NEXT;
END $$;
COMMENT ON FUNCTION rate_limit_rollup() IS
	'Computes the hours and days of rate_limit_metrics whose minutes have changed, and returns how many rows '
	'it wrote. rate_limit_upkeep does the same.';
