-- Copies the tables of your own API rate limiter into the policy: rules with requests_per_hour and user_tier,
-- users with limits of their own, and API keys that are stored as digests. Change the names of the old tables
-- and columns to yours.
--
-- The old table rate_limit_rules has the name of a table of the policy. So first, as the owner of the old
-- tables, move them to another schema; then create the tables of the policy, and run this script:
--
--	psql "$DATABASE_URL" -c 'CREATE SCHEMA old; ALTER TABLE rate_limit_rules SET SCHEMA old' \
--		-c 'ALTER TABLE user_quotas SET SCHEMA old; ALTER TABLE api_keys SET SCHEMA old'
--	psql "$DATABASE_URL" -f schema.sql
--	psql "$DATABASE_URL" -f deploy/from-own-tables.sql
--
-- Run the script again to copy later changes. Counts are not copied: each limit starts with its full quota.
-- All rules that match a request apply. If your rate limiter applied only the first rule that matched, put
-- the rules into one family, because only the first of a family applies:
-- UPDATE rate_limit_rules SET family = 'old';
BEGIN;

INSERT INTO rate_limit_tiers (tier)
SELECT user_tier FROM old.rate_limit_rules WHERE user_tier IS NOT NULL
UNION SELECT tier FROM old.user_quotas
UNION SELECT tier FROM old.api_keys
ON CONFLICT DO NOTHING;

-- A limit of a user applies only if user_id is exactly the name that your proxy, or the user's API key, gives
-- to the user's requests.
INSERT INTO rate_limit_users (user_id, tier)
SELECT user_id::text, tier FROM old.user_quotas
ON CONFLICT (user_id) DO UPDATE SET tier = excluded.tier;

SELECT rate_limit_rule(rule_name, priority => priority,
	mode => CASE WHEN enabled THEN 'enforce' ELSE 'off' END,
	action => CASE action WHEN 'block' THEN 'block' WHEN 'allow' THEN 'exempt' ELSE 'limit' END,
	tiers => CASE WHEN user_tier IS NOT NULL THEN ARRAY[user_tier::text] END,
	paths => CASE WHEN endpoint_pattern IS NOT NULL THEN ARRAY[endpoint_pattern::text] END,
	methods => CASE WHEN http_method IS NOT NULL THEN ARRAY[upper(http_method)] END,
	networks => CASE WHEN ip_range IS NOT NULL THEN ARRAY[ip_range] END,
	algorithm => CASE WHEN limits THEN coalesce(kind.name, algorithm) END,
	per_second => CASE WHEN limits THEN requests_per_second END,
	per_minute => CASE WHEN limits THEN requests_per_minute END,
	per_hour => CASE WHEN limits THEN requests_per_hour END,
	per_day => CASE WHEN limits THEN requests_per_day END,
	burst => CASE WHEN limits AND coalesce(kind.name, algorithm) IN ('token_bucket', 'gcra')
		THEN burst_size END,
	status => CASE WHEN limits AND response_status = 429 THEN NULL ELSE response_status END,
	message => response_message,
	retry_after => retry_after_seconds * interval '1 s')
FROM (SELECT *, action NOT IN ('block', 'allow') AS limits FROM old.rate_limit_rules) AS r
	LEFT JOIN (VALUES ('leaky_bucket', 'gcra'), ('sliding_window_log', 'sliding_log'),
		('sliding_window_counter', 'sliding_window')) AS kind (old, name)
		ON kind.old = r.algorithm;

-- Only SHA-256 digests of whole keys, in hexadecimal, can be copied, because a proxy finds a key by its
-- digest. A digest with a salt, as bcrypt makes, cannot be found by the key alone. The users of such keys
-- need new keys; the last query of this script lists the keys.
INSERT INTO rate_limit_api_keys (digest, name, user_id, tier, expires_at, revoked_at, revoked_by)
SELECT decode(api_key_hash, 'hex'), nullif(key_name, ''), k.user_id::text,
	CASE WHEN k.tier <> q.tier THEN k.tier END,
	coalesce(expires_at AT TIME ZONE 'UTC', 'infinity'), gone.at,
	CASE WHEN gone.at IS NOT NULL THEN k.revoked_by END
FROM old.api_keys k JOIN old.user_quotas q USING (user_id)
	CROSS JOIN LATERAL (SELECT coalesce(k.revoked_at AT TIME ZONE 'UTC',
		CASE WHEN NOT k.is_active THEN now() END) AS at) AS gone
WHERE api_key_hash ~ '^[0-9a-fA-F]{64}$'
ON CONFLICT (digest) DO UPDATE SET tier = excluded.tier, expires_at = excluded.expires_at,
	revoked_at = coalesce(rate_limit_api_keys.revoked_at, excluded.revoked_at),
	revoked_by = coalesce(rate_limit_api_keys.revoked_by, excluded.revoked_by);

-- A limit of a user or of a key becomes an override of the limit that the rule of the tier has.
DELETE FROM rate_limit_overrides WHERE reason = 'own tables';
INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events, burst, reason)
SELECT l.rule, l.name, q.user_id::text, coalesce(own.events, l.events),
	CASE WHEN l.algorithm IN ('token_bucket', 'gcra') THEN custom_burst_size END, 'own tables'
FROM old.user_quotas q JOIN rate_limit_rules r ON q.tier = ANY (r.tiers)
	JOIN rate_limit_rule_limits l ON l.rule = r.name
	CROSS JOIN LATERAL (SELECT CASE l.name WHEN 'per_hour' THEN custom_limit_per_hour
		WHEN 'per_day' THEN custom_limit_per_day END AS events) AS own
WHERE own.events IS NOT NULL OR (custom_burst_size IS NOT NULL AND l.algorithm IN ('token_bucket', 'gcra'));
INSERT INTO rate_limit_overrides (rule, limit_name, key_id, events, burst, reason)
SELECT l.rule, l.name, n.id, coalesce(own.events, l.events),
	CASE WHEN l.algorithm IN ('token_bucket', 'gcra') THEN burst_size END, 'own tables'
FROM old.api_keys k JOIN rate_limit_api_keys n ON encode(n.digest, 'hex') = lower(api_key_hash)
	JOIN rate_limit_rules r ON k.tier = ANY (r.tiers) JOIN rate_limit_rule_limits l ON l.rule = r.name
	CROSS JOIN LATERAL (SELECT CASE l.name WHEN 'per_second' THEN requests_per_second
		WHEN 'per_hour' THEN requests_per_hour WHEN 'per_day' THEN requests_per_day END AS events) AS own
WHERE own.events IS NOT NULL OR (burst_size IS NOT NULL AND l.algorithm IN ('token_bucket', 'gcra'));

INSERT INTO rate_limit_bans (user_id, until, reason)
SELECT user_id::text, coalesce(blocked_until AT TIME ZONE 'UTC', 'infinity'), block_reason
FROM old.user_quotas
WHERE is_blocked AND (blocked_until IS NULL OR blocked_until AT TIME ZONE 'UTC' > now())
ON CONFLICT (user_id) DO UPDATE SET until = excluded.until, reason = excluded.reason;

-- Lists what was not copied.
SELECT 'key ' || api_key_id || ' of user ' || user_id || ': the digest is no SHA-256' AS not_taken_over
FROM old.api_keys WHERE api_key_hash !~ '^[0-9a-fA-F]{64}$'
UNION ALL
SELECT 'user ' || user_id || ': no rule of the tier ' || tier || ' has ' || own.name
FROM old.user_quotas q CROSS JOIN LATERAL (VALUES ('per_hour', custom_limit_per_hour),
	('per_day', custom_limit_per_day)) AS own (name, events)
WHERE own.events IS NOT NULL AND NOT EXISTS (
	SELECT FROM rate_limit_rules r JOIN rate_limit_rule_limits l ON l.rule = r.name
	WHERE q.tier = ANY (r.tiers) AND l.name = own.name);

COMMIT;
