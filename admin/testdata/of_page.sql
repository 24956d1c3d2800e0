INSERT INTO rate_limit_nodes (node, report)
	VALUES ('edge', '{"version": "v1", "applied": "1:1:", "clock": 1}');
INSERT INTO rate_limit_nodes (node, seen, report)
	VALUES ('late', now() + interval '11 s', '{"version": "v1", "applied": "1:1:"}');
INSERT INTO rate_limit_tiers (tier) VALUES ('new');
SELECT rate_limit_upkeep(), rate_limit_ledger_upkeep(), rate_limit_price('gpt-4o', 2.5, 10);
INSERT INTO rate_limit_ledger (day, id, time, model, charges, search)
	VALUES ((now() AT TIME ZONE 'UTC')::date, gen_random_uuid(), now(), 'gpt-4o', '[]', 1);
INSERT INTO rate_limit_metrics (granularity, time, prefix, requests, admitted, last_request)
	VALUES ('minute', date_trunc('minute', now()) + interval '1 minute', 'web', 1, 1, now());
