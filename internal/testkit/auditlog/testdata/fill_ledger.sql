INSERT INTO rate_limit_ledger (day, id, time, user_id, key_id, ancestors, model, input,
	cache_read, cache_write, output, money, remainder, charges, kind, cache_write_1h, audio_input,
	audio_cache_read, audio_output, image_input, image_output, search, estimated_input, estimated_output,
	estimated_money, tier, answered, price, price_valid, lines, corrects, corrects_time, corrected_by, reason)
SELECT $1::date, gen_random_uuid(), $1::timestamptz + i * (interval '25 h' / $2), CASE WHEN i % 5 > 0
	THEN 'user-' || i % 977 END, CASE WHEN i % 3 = 0 THEN i END, CASE i % 3 WHEN 0 THEN '{}'
	WHEN 1 THEN '{team,org}' ELSE '{"",org}' END::text[],
	(ARRAY['gpt-5', U&'\043C\043E\0434\0435\043B\044C', NULL])[1 + i % 3], CASE WHEN i % 7 > 0 THEN i END,
	i % 11, i % 12, i % 13, CASE i % 9 WHEN 0 THEN NULL WHEN 1 THEN 9007199254740993
		ELSE (1 + i * 7919 % 1000000) * sign END, CASE WHEN i % 2 = 0 THEN -(i % 1000) END,
	jsonb_build_array(jsonb_build_object('prefix', 'rule/budget/month', 'key', 'org', 'durable', true, 'unit',
		(ARRAY['money', 'tokens'])[1 + i % 2], 'units', i + 0.125)), kind,
	i % 14, i % 15, i % 16, i % 17, i % 18, i % 19, CASE WHEN i % 20 = 0 THEN 1 END, i % 2, i % 3,
	CASE WHEN i % 4 = 0 THEN i * 0.125 END, CASE WHEN i % 4 = 0 THEN 'batch' END,
	CASE WHEN i % 5 = 0 THEN 'gpt-5-2026' END, CASE WHEN i % 6 = 0 THEN 'gpt-*' END,
	CASE WHEN i % 6 = 0 THEN tstzrange('2026-01-01Z', NULL) END,
	CASE WHEN i % 6 = 0 THEN jsonb_build_array(jsonb_build_object('model', 'gpt-5-mini', 'input', i,
		'money', (i + 0.125) * sign)) END,
	CASE WHEN sign < 0 THEN gen_random_uuid() END, CASE WHEN sign < 0 THEN $1 - interval '1 day' END,
	CASE WHEN sign < 0 THEN 'ann' END, CASE WHEN sign < 0 THEN 'a wrong price' END
FROM generate_series(1, $2::int) i, LATERAL (SELECT CASE i % 10 WHEN 3 THEN -1 ELSE 1 END AS sign,
	CASE i % 10 WHEN 3 THEN 'correction' ELSE 'charge' END AS kind) k
