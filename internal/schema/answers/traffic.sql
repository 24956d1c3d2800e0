-- Percentiles of durations.

-- The p-quantile of decision times in milliseconds, such as p95 for p = 0.95. Bucket 1 counts times up to 0.1
-- ms, with the result 0.1, bucket i longer times up to 0.1 * 2^((i-1)/4) ms, and bucket 78 all times above 52
-- s, with the result 52428.8. The result is the geometric middle of its bucket: between 0.1 and 52428.8 it
-- differs by at most 9.1 % from the exact time. NULL: there are no decisions. To combine several rows, add
-- their buckets with rate_limit_sum.
CREATE OR REPLACE FUNCTION rate_limit_percentile(buckets bigint[], p float8)
	RETURNS float8 LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT 0.1 * power(2::float8, CASE u.i WHEN 1 THEN 0 WHEN 78 THEN 76 ELSE u.i - 1.5 END / 4)
	FROM (SELECT b.i, b.n, sum(b.n) OVER (ORDER BY b.i)::float8 AS upto,
			least(greatest(ceil(p * sum(b.n) OVER ()), 1), sum(b.n) OVER ())::float8 AS rank
		FROM unnest(buckets) WITH ORDINALITY AS b(n, i)) AS u
	WHERE u.n > 0 AND u.upto >= u.rank ORDER BY u.i LIMIT 1);

-- The sum of arrays, element by element, such as the durations of several rows of rate_limit_metrics.
CREATE OR REPLACE AGGREGATE rate_limit_sum(bigint[]) (SFUNC = rate_limit_add_buckets, STYPE = bigint[],
	INITCOND = '{}', COMBINEFUNC = rate_limit_add_buckets, PARALLEL = SAFE);

-- rate_limit_metrics with percentiles of decision times.
--   p50_ms: The median time of a decision, in milliseconds.
--   p95_ms: The time that 95 % of the decisions did not exceed, in milliseconds.
--   p99_ms: The time that 99 % of the decisions did not exceed, in milliseconds.
CREATE OR REPLACE VIEW rate_limit_traffic WITH (security_invoker) AS
	SELECT rate_limit_percentile(m.durations, 0.5) AS p50_ms,
		rate_limit_percentile(m.durations, 0.95) AS p95_ms,
		rate_limit_percentile(m.durations, 0.99) AS p99_ms, m.*
	FROM rate_limit_metrics m;
