-- Bans networks with too many refusals by a rule: docs/policy.md, "Logins". Run this file as the owner of the
-- tables. Then run, every minute as an administrator, with pg_cron or cron:
--     SELECT ban_refused('login', 10, '10 minutes', '1 hour')
-- It needs the audit log with whole addresses, in the database of the policy.
CREATE OR REPLACE FUNCTION ban_refused(rule text, refusals bigint, within interval, lasts interval)
RETURNS bigint LANGUAGE sql AS $$
	WITH refused AS (
		SELECT network(set_masklen(a.address, CASE family(a.address) WHEN 4 THEN 32 ELSE 64 END)) AS network,
			a.time, a.requests
		FROM rate_limit_audited a
		WHERE a.time > now() - within AND a.outcome = 'limited' AND NOT a.shadow
			AND a.prefix = 'rule/' || rule
			AND masklen(a.address) = CASE family(a.address) WHEN 4 THEN 32 ELSE 128 END
	), banned AS (
		INSERT INTO rate_limit_bans (network, until, reason)
		SELECT r.network, now() + lasts, round(sum(r.requests)) || ' refusals by ' || rule FROM refused r
		WHERE NOT EXISTS (SELECT FROM rate_limit_bans b WHERE b.network = r.network AND b.until > r.time)
			AND NOT EXISTS (SELECT FROM rate_limit_changes c
				WHERE c.kind = 'ban' AND c.ref = 'network/' || r.network AND c.after IS NULL
					AND c.at > r.time)
			AND NOT EXISTS (SELECT FROM rate_limit_rules e
				WHERE e.action = 'exempt' AND e.mode <> 'off' AND e.valid @> now()
					AND r.network && ANY (e.networks))
		GROUP BY r.network HAVING sum(r.requests) >= refusals
		ON CONFLICT (network) DO UPDATE SET until = excluded.until, reason = excluded.reason,
			banned_at = now(), banned_by = excluded.banned_by
		RETURNING 1
	)
	SELECT count(*) FROM banned
$$;
