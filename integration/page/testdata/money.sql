UPDATE rate_limit_ledger_retention SET currency = 'EUR';
SELECT rate_limit_price('gpt-4o*', 2.5, 10, parts => '{audio_input=40}', tiers => '{flex=0.5}');
INSERT INTO rate_limit_notices (rule, limit_name, key, period, percent, used, quota)
	VALUES ('plan', 'month', 'orbit', now(), 80, 40.25, 50);
INSERT INTO rate_limit_ledger (day, id, time, user_id, ancestors, model, price, input, money,
		search, estimated_input, estimated_money, charges)
	SELECT (now() AT TIME ZONE 'UTC')::date, gen_random_uuid(), now(), u, a, m, 'gpt-4o*', 1, c, s, e, e,
		'[]'
	FROM (SELECT 'p' || i AS u, '{blue,orbit}'::text[] AS a, 'gpt-4o' AS m, i * 1000000 AS c,
			1 AS s, NULL::bigint AS e FROM generate_series(1, 60) i
		UNION ALL VALUES ('%[1]s', '{"%[1]s-team",orbit}'::text[], '%[1]s', NULL::bigint, NULL::bigint,
			NULL::bigint),
			(NULL, '{}', 'gpt-4o', 100500000, NULL, 500000)) v(u, a, m, c, s, e);
INSERT INTO rate_limit_ledger (day, id, time, model, money, charges, kind, corrects, corrects_time,
		corrected_by, reason)
	SELECT (now() AT TIME ZONE 'UTC')::date, gen_random_uuid(), now(), 'gpt-4o', i %% 2 * 2 - 1, '[]',
		'correction', gen_random_uuid(), '2026-10-31', '%[1]s', '%[1]s-why' || i
	FROM generate_series(1, 60) i
