INSERT INTO rate_limit_ledger (day, id, time, user_id, key_id, ancestors, model, input,
	output, money, remainder, charges)
SELECT d::date, gen_random_uuid(), d + i % 86400 * interval '1 s', 'user-' || i % 1000, i % 1000,
	ARRAY['team-' || i % 100, 'org'], 'gpt-' || i % 3, i % 4000, i % 900, 1 + i % 50000, -(i % 1000),
	(SELECT jsonb_agg(jsonb_build_object('prefix', 'rule/budget/' || l, 'key', l || i % 1000, 'durable', true,
		'unit', 'money', 'units', 1 + i % 50000)) FROM unnest('{person,team,org}'::text[]) l)
FROM generate_series(50000, 49999 + $2::int) i, LATERAL (SELECT $1::timestamptz AS d) t
