-- Functions for sums of rate_limit_metrics, and for percentiles of latencies.

CREATE OR REPLACE FUNCTION rate_limit_add(a numeric, b bigint) RETURNS bigint
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN least(coalesce(a, 0) + b, 9223372036854775807);
COMMENT ON FUNCTION rate_limit_add IS
	'The sum of two numbers, at most the largest bigint, so that no number from a proxy makes a sum fail. '
	'NULL in a counts as 0.';

-- The loop takes half the time of an array_agg over unnest. The body repeats the body of rate_limit_add,
-- because a call of rate_limit_add would depend on the search_path.
CREATE OR REPLACE FUNCTION rate_limit_add_buckets(a bigint[], b bigint[]) RETURNS bigint[]
	LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
	FOR i IN 1..coalesce(array_length(b, 1), 0) LOOP
		a[i] := least(coalesce(a[i], 0)::numeric + coalesce(b[i], 0), 9223372036854775807);
	END LOOP;
	RETURN a;
END $$;
COMMENT ON FUNCTION rate_limit_add_buckets IS
	'The sum of two arrays, element by element. Missing elements count as 0.';
CREATE OR REPLACE AGGREGATE rate_limit_sum(bigint[]) (SFUNC = rate_limit_add_buckets, STYPE = bigint[],
	INITCOND = '{}', COMBINEFUNC = rate_limit_add_buckets, PARALLEL = SAFE);
COMMENT ON AGGREGATE rate_limit_sum(bigint[]) IS
	'The sum of arrays, element by element, such as the latencies of several rows of rate_limit_metrics.';

CREATE OR REPLACE FUNCTION rate_limit_percentile(buckets bigint[], p float8)
	RETURNS float8 LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT 0.1 * power(2::float8, least(u.i, 20) - 1) * (1 - CASE WHEN u.i = 1 THEN 1
	WHEN u.i <= 20 THEN 0.5 ELSE 0 END * (u.upto - u.rank) / u.n)
	FROM (SELECT b.i, b.n, sum(b.n) OVER (ORDER BY b.i)::float8 AS upto,
			least(greatest(ceil(p * sum(b.n) OVER ()), 1), sum(b.n) OVER ())::float8 AS rank
		FROM unnest(buckets) WITH ORDINALITY AS b(n, i)) AS u
	WHERE u.n > 0 AND u.upto >= u.rank ORDER BY u.i LIMIT 1);
COMMENT ON FUNCTION rate_limit_percentile IS
	'The p-quantile of decision times in milliseconds, such as p95 for p = 0.95. Bucket 1 counts times up to '
	'0.1 ms, bucket i longer times up to 0.1 * 2^(i-1) ms, and bucket 21 all times above 52 s, with the '
	'result 52428.8. The result is interpolated within its bucket: from 0.1 to 52428.8 it is within a factor '
	'of 2 of the exact time. NULL: there are no decisions. To combine several rows, add their buckets with '
	'rate_limit_sum.';

CREATE OR REPLACE VIEW rate_limit_traffic WITH (security_invoker) AS
	SELECT rate_limit_percentile(m.latency, 0.5) AS p50_ms, rate_limit_percentile(m.latency, 0.95) AS p95_ms,
		rate_limit_percentile(m.latency, 0.99) AS p99_ms, m.*
	FROM rate_limit_metrics m;
CALL rate_limit_describe('rate_limit_traffic', $$
rate_limit_metrics with percentiles of decision times.
p50_ms: The median time of a decision, in milliseconds.
p95_ms: The time that 95 % of the decisions did not exceed, in milliseconds.
p99_ms: The time that 99 % of the decisions did not exceed, in milliseconds.
$$);
