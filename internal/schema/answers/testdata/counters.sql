SELECT rate_limit_rule('r',
	limits => '{l=50 tokens/1mo calendar,m=50 tokens/1d calendar}', notify => '{80}');
INSERT INTO rate_limit_durable (prefix, key, count, window_start, expires_at)
	SELECT 'rule/r/l', 'u' || i, CASE WHEN i % 1000 = 0 OR i % 3 = 1 THEN 45 ELSE 39 END, m,
		m + interval '1 month'
	FROM generate_series(1, COUNTERS) i, date_trunc('month', now(), 'UTC') m;
INSERT INTO rate_limit_notices (rule, limit_name, key, period, percent, used, quota, resets_at)
	SELECT 'r', 'l', 'u' || i, m, 80, 45, 50, m + interval '1 month'
	FROM generate_series(1, COUNTERS, 3) i, date_trunc('month', now(), 'UTC') m
