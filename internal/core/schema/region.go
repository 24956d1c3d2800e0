package schema

// Publication is the name of the publication of the policy. A subscription has it, an underscore and the region.
const Publication = "rate_limit_policy"

// Published are the tables of the publication. What is not published is written by proxies and triggers of each server.
var Published = []string{"rate_limit_tiers", "rate_limit_users", "rate_limit_api_keys", "rate_limit_rules", "rate_limit_rule_limits", "rate_limit_overrides", "rate_limit_bans"}

// PolicyCopied is whether no table of the policy is being copied from a publisher.
const PolicyCopied = `NOT EXISTS (SELECT FROM pg_catalog.pg_subscription_rel s WHERE s.srsubstate NOT IN ('s', 'r')
	AND s.srrelid IN (to_regclass('rate_limit_tiers'), to_regclass('rate_limit_users'), to_regclass('rate_limit_api_keys'), to_regclass('rate_limit_rules'),
		to_regclass('rate_limit_rule_limits'), to_regclass('rate_limit_overrides'), to_regclass('rate_limit_bans')))`

// Replication returns a row for a region, and none for another database: the region, the subscription, its state, for how many
// seconds the publisher has been silent, and how many changes could not be applied.
const Replication = `SELECT r.region, coalesce(s.subname, '') AS subscription, CASE WHEN s.oid IS NULL THEN 'none' WHEN NOT s.subenabled THEN 'disabled'
		WHEN NOT ` + PolicyCopied + ` THEN 'copying' WHEN w.works THEN 'streaming' ELSE 'stopped' END AS state,
	coalesce(extract(epoch FROM clock_timestamp() - w.received), 0)::float8 AS silent, coalesce(e.apply_error_count + e.sync_error_count, 0)::bigint AS errors
FROM (SELECT rate_limit_region() AS region) r
LEFT JOIN pg_catalog.pg_subscription s ON s.subdbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
	AND '` + Publication + `' = ANY (s.subpublications)
LEFT JOIN LATERAL (SELECT bool_or(a.pid IS NOT NULL) AS works, max(a.last_msg_receipt_time) AS received
	FROM pg_catalog.pg_stat_subscription a WHERE a.subid = s.oid AND a.relid IS NULL) w ON true
LEFT JOIN pg_catalog.pg_stat_subscription_stats e ON e.subid = s.oid
WHERE r.region IS NOT NULL`
