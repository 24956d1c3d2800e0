INSERT INTO rate_limit_audit
SELECT $1::timestamptz + (i::bigint * 7919 % $2) * (interval '1 day' / $2) + i % 1000 * interval '1 us',
	1 + i % 5, CASE WHEN i % 10 = 0 THEN 1000 ELSE 1 END,
	CASE i % 4 WHEN 0 THEN NULL WHEN 1 THEN 9223372036854775807 ELSE 1000 END,
	CASE i % 4 WHEN 0 THEN NULL WHEN 1 THEN -9223372036854775808 ELSE i % 1000 END,
	CASE WHEN i % 3 = 0 THEN i END, CASE WHEN i % 5 = 0 THEN 1000 * i END, (i * 31) % 5000,
	(ARRAY[1, 100, 0.1, 'Infinity', '-0', 1e-300, '-Infinity', 1e300]::float8[])[1 + i % 8],
	CASE i % 3 WHEN 0 THEN 429 WHEN 1 THEN -2147483648 END, i % 11 = 0,
	(ARRAY['admitted', 'limited', 'blocked', 'rejected', 'overloaded', 'failed'])[1 + i % 6],
	CASE i % 3 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'no_quota' END, CASE WHEN i % 7 = 0 THEN 'gpt-5' END,
	CASE i % 3 WHEN 0 THEN '' WHEN 1 THEN 'login' ELSE U&'rule/frei-f\00FCr-alle' END,
	CASE WHEN i % 2 = 0 THEN 'hour' END, md5(i::text), CASE WHEN i % 4 > 0 THEN 'user-' || i % 977 END, CASE
		WHEN i % 4 > 0 THEN 'free' END,
	CASE i % 7 WHEN 0 THEN NULL WHEN 1 THEN '192.0.2.1' WHEN 2 THEN '2001:db8::1' WHEN 3 THEN '192.0.2.0/24'
		WHEN 4 THEN '2001:db8::/56'
		WHEN 5 THEN '::ffff:192.0.2.9' ELSE '203.0.113.77/8' END::inet,
	CASE i % 3 WHEN 0 THEN NULL WHEN 1 THEN 'example.com'
		ELSE U&'\043F\0440\0438\043C\0435\0440.\0440\0444' END, (ARRAY['GET', 'POST', NULL])[1 + i % 3],
	'/' || repeat(U&'\00E9\20AC\+01F600"\\', i % 41) || i, 'node-' || i % 3,
	CASE WHEN i % 2 = 0 THEN 'eu' END,
	CASE i % 5 WHEN 0 THEN NULL WHEN 1 THEN '{}' WHEN 2 THEN ARRAY['login', '192.0.2.1'] WHEN 3
		THEN ARRAY['', NULL, 'x,"y"', '{}'] ELSE ARRAY['one'] END
FROM generate_series(1, $2::int) i
