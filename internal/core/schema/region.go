package schema

// PolicyCopied is whether no table of the policy is being copied from a publisher.
const PolicyCopied = `NOT EXISTS (SELECT FROM pg_catalog.pg_subscription_rel s WHERE s.srsubstate NOT IN ('s', 'r')
	AND s.srrelid IN (to_regclass('rate_limit_tiers'), to_regclass('rate_limit_users'), to_regclass('rate_limit_api_keys'), to_regclass('rate_limit_rules'),
		to_regclass('rate_limit_rule_limits'), to_regclass('rate_limit_overrides'), to_regclass('rate_limit_bans')))`
