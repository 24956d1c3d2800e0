INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro');
SELECT rate_limit_rule('plan', per_hour => 100);
INSERT INTO rate_limit_users (user_id, tier) SELECT 'user-' || lpad(i::text, 7, '0'), CASE i % 10
WHEN 0 THEN 'pro' ELSE 'free' END FROM generate_series(1, USERS) AS i;
INSERT INTO rate_limit_api_keys (user_id, digest, hint, name)
SELECT 'user-' || lpad((1 + i % USERS)::text, 7, '0'), sha256(i::text::bytea), 'prl_abcd', 'app'
FROM generate_series(1, KEYS) AS i;
SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date - d) FROM generate_series(0, 3)
AS d
