-- Measures the queries behind the lists of commands and of the page. The database then has 100,000 users,
-- 1,000,000 API keys, 100,000 counters, a day of the audit log with 5,000,000 rows (1,000,000 refusals), and
-- 5,000 rows of metrics a minute. Run it in an empty, migrated database: psql -f bench/lists.sql DSN
\set ON_ERROR_STOP on
\set QUIET on
INSERT INTO rate_limit_tiers (tier) VALUES ('free');
SELECT rate_limit_rule('plan', tiers => '{free}', per_day => 1000);
BEGIN;
SET LOCAL session_replication_role = replica; -- turns off the triggers that log each row
INSERT INTO rate_limit_users (user_id, tier) SELECT 'u' || i, 'free' FROM generate_series(1, 100000) i;
INSERT INTO rate_limit_api_keys (digest, user_id, hint)
	SELECT sha256(('k' || i)::bytea), 'u' || (1 + i % 100000), 'prl_' || i FROM generate_series(1, 1000000) i;
COMMIT;
INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at)
	SELECT 'rule/plan/per_day', 'u' || i, i % 1050, now(), now() + interval '2 days'
	FROM generate_series(1, 100000) i;
SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date - d, parent)
	FROM unnest('{rate_limit_audit,rate_limit_metrics_minute,rate_limit_metrics_hour}'::text[]) parent,
		generate_series(-1, 2) d \g /dev/null
INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, reason, prefix, limit_name, key, user_id,
	address, host, method, path, node, quota, remaining)
	SELECT now() - interval '24 hours' * (1 - i / 5000000.0), 1, 900,
		CASE i % 10 WHEN 0 THEN 'limited' WHEN 1 THEN 'blocked' ELSE 'admitted' END,
		CASE i % 10 WHEN 1 THEN 'banned' END, CASE i % 10 WHEN 1 THEN '' ELSE 'rule/plan' END, 'per_day',
		'u' || i % 99991, 'u' || i % 99991, ('10.' || i % 200 || '.' || i % 251 || '.' || i % 241)::inet,
		'shop.example', 'GET', '/a/' || i % 1000, 'node' || i % 5, 1000, 0
	FROM generate_series(1, 5000000) i;
INSERT INTO rate_limit_metrics (granularity, time, user_id, prefix, limit_name, requests, admitted, limited,
	last_request)
	SELECT g, date_trunc(g, now() - m * ('1 ' || g)::interval, 'UTC'), 'u' || (p + m * 977) % 100000,
		'rule/plan', 'per_day', 10, 9, 1, now()
	FROM unnest('{minute,hour,day}'::text[]) g, generate_series(0, CASE g WHEN 'minute' THEN 60 ELSE 9 END) m,
		generate_series(1, 5000) p;
VACUUM ANALYZE;
SET jit = off; -- as commands and the page do
\timing on
\o /dev/null
\echo users list
SELECT * FROM (SELECT * FROM rate_limit_user_states ORDER BY user_id LIMIT 100) u
	LEFT JOIN LATERAL rate_limit_recent(u.user_id) ON true;
\echo keys list
SELECT * FROM (SELECT * FROM rate_limit_key_states ORDER BY id LIMIT 100) k
	LEFT JOIN LATERAL rate_limit_recent(k.user_id, k.id) ON true;
\echo tiers list
SELECT * FROM rate_limit_tier_states;
\echo rules list
SELECT * FROM rate_limit_rule_states;
\echo top
SELECT * FROM rate_limit_used WHERE used > 0 AND quota IS NOT NULL ORDER BY percent DESC, used DESC LIMIT 20;
\echo top --since 1h
SELECT * FROM rate_limit_top(now() - interval '1 hour') ORDER BY requests DESC LIMIT 20;
\echo top --since 1h --by path
SELECT * FROM rate_limit_top(now() - interval '1 hour', by => 'path') ORDER BY requests DESC LIMIT 20;
\echo top --since 24h
SELECT * FROM rate_limit_top(now() - interval '1 day') ORDER BY requests DESC LIMIT 20;
\echo top --since 24h, exact
SELECT * FROM rate_limit_top(now() - interval '1 day', max_rows => NULL) ORDER BY requests DESC LIMIT 20;
\echo audit --since 24h
SELECT a.* FROM (SELECT greatest(now() - interval '1 day', CASE WHEN i < 20 THEN now() - 2 ^ i
		* interval '1 minute' END) AS low, now() - floor(2 ^ (i - 1)) * interval '1 minute' AS high
	FROM generate_series(0, 20) AS i ORDER BY i) AS step, LATERAL (SELECT * FROM rate_limit_audited a
	WHERE a.time >= step.low AND a.time < step.high ORDER BY a.time DESC LIMIT 50) a LIMIT 50;
\echo audit --user u77 --since 24h
SELECT * FROM rate_limit_audited WHERE time >= now() - interval '1 day' AND user_id = 'u77'
	ORDER BY time DESC LIMIT 50;
\echo usage u77
SELECT * FROM rate_limit_usage_between('u77', now()::date - 30, now()::date);
\echo why: a user
SELECT * FROM rate_limit_why('u77');
\echo why: an address without a refusal
SELECT * FROM rate_limit_why('192.0.2.1');
\echo why: nobody
SELECT * FROM rate_limit_why('nobody');
\echo the page: state
SELECT * FROM rate_limit_state;
\echo the page: minutes
SELECT * FROM rate_limit_minutes WHERE time > now() - interval '1 hour';
\echo the page: refused
SELECT * FROM rate_limit_refused(now() - interval '1 hour');
\echo the page: near
SELECT *, count(*) OVER () FROM rate_limit_near ORDER BY percent DESC LIMIT 50;
\echo the page: changes
SELECT * FROM rate_limit_changed WHERE at > now() - interval '1 hour' ORDER BY at DESC LIMIT 50;
\echo the page: bans
SELECT * FROM rate_limit_banned;
