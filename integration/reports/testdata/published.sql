DO $$ BEGIN CREATE PUBLICATION reports FOR ALL TABLES;
EXCEPTION WHEN duplicate_object THEN NULL; END $$;
INSERT INTO rate_limit_users (user_id, tier) VALUES ('zoe-PROXY', 'free');
INSERT INTO rate_limit_api_keys (id, digest, user_id)
SELECT max(id) + 1, sha256('ID-9f86d081884c7d659a2feaa0c55ad015'), 'zoe-PROXY' FROM rate_limit_api_keys;
SELECT rate_limit_make_partition(current_date - 40, 'rate_limit_audit');
INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, node, user_id)
	VALUES (now() - interval '40 days', 1, 1, 'limited', 'p', 'n', 'zoe-PROXY');
SELECT rate_limit_ledger_upkeep();
INSERT INTO rate_limit_ledger (day, id, time, user_id, output, charges)
	VALUES (current_date, gen_random_uuid(), now(), 'zoe-PROXY', 77, '[]');
