INSERT INTO rate_limit_tiers (tier, rank) VALUES ('free', 1);
INSERT INTO rate_limit_users (user_id, tier) VALUES ('org', 'free');
INSERT INTO rate_limit_users (user_id, tier, parent) VALUES ('ann', 'free', 'org');
INSERT INTO rate_limit_api_keys (digest, user_id, name) VALUES (sha256('ann'), 'ann', 'first');
SELECT rate_limit_rule('plan', count_by => '{user}', per_day => 5);
INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('plan', 'per_day', 'ann', 7);
INSERT INTO rate_limit_bans (network, reason) VALUES ('192.0.2.0/24', 'noise');
INSERT INTO rate_limit_prices (model, input, output) VALUES ('m', 1, 2);
INSERT INTO rate_limit_secrets VALUES ('x', 'y');
INSERT INTO rate_limit_grants VALUES ('nobody', 'reader');
INSERT INTO rate_limit_processes VALUES (1, now());
INSERT INTO rate_limit_durable (prefix, key, count, window_start, held, expires_at)
	VALUES ('rule/plan/per_day', 'ann', 3, now(), '{{1,5}}', now() + interval '1 d');
INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at)
	VALUES ('z', 'ann', 3, now(), now() + interval '1 d');
INSERT INTO rate_limit_ledger (day, id, time, user_id, input, charges)
	VALUES ((now() AT TIME ZONE 'UTC')::date, gen_random_uuid(), now(), 'ann', 7, '[]');
INSERT INTO rate_limit_ledger_days (day) SELECT (now() AT TIME ZONE 'UTC')::date ON CONFLICT DO NOTHING;
INSERT INTO rate_limit_totals (day, n, user_id, ancestors, own, settled, kind, requests)
	SELECT d, 1, 'ann', '{org}', true, d, 'charge', 1 FROM (SELECT (now() AT TIME ZONE 'UTC')::date) t(d);
INSERT INTO rate_limit_ledger_retention (keep) SELECT '400 days' WHERE NOT EXISTS (
	SELECT FROM rate_limit_ledger_retention);
INSERT INTO rate_limit_notices (rule, limit_name, key, period, percent, used, quota)
	VALUES ('plan', 'per_day', 'ann', now(), 80, 4, 5);
INSERT INTO rate_limit_nodes (node) VALUES ('n');
INSERT INTO rate_limit_writers (writer, node, batch) VALUES ('w', 'n', 1);
SELECT rate_limit_upkeep();
INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, node)
	VALUES (now(), 1, 1, 'limited', 'z', 'n');
INSERT INTO rate_limit_metrics (granularity, time, requests, last_request)
	SELECT g, date_trunc('day', now(), 'UTC'), 1, now() FROM unnest('{minute,hour,day}'::text[]) g;
