// Code generated from package columns by go generate. DO NOT EDIT.

package schema

// policyComments are the comments of the columns that people set.
const policyComments = `
COMMENT ON COLUMN rate_limit_tiers.tier IS 'The name.';
COMMENT ON COLUMN rate_limit_tiers.rank IS 'The order of tiers in lists, lowest first.';
COMMENT ON COLUMN rate_limit_tiers.comment IS 'For people.';
COMMENT ON COLUMN rate_limit_users.user_id IS 'The name.';
COMMENT ON COLUMN rate_limit_users.tier IS 'The tier of the user.';
COMMENT ON COLUMN rate_limit_users.tier_until IS 'When the tier ends. infinity: never.';
COMMENT ON COLUMN rate_limit_users.period_start IS 'A day on which a billing period begins.';
COMMENT ON COLUMN rate_limit_users.time_zone IS 'The zone of the billing periods, as in Europe/Berlin.';
COMMENT ON COLUMN rate_limit_users.comment IS 'For people.';
COMMENT ON COLUMN rate_limit_api_keys.digest IS 'The SHA-256 of the key.';
COMMENT ON COLUMN rate_limit_api_keys.user_id IS 'Whose key it is.';
COMMENT ON COLUMN rate_limit_api_keys.tier IS 'The tier of requests with the key; empty: that of the user.';
COMMENT ON COLUMN rate_limit_api_keys.hint IS 'The first characters of the key, at most 16.';
COMMENT ON COLUMN rate_limit_api_keys.name IS 'What the key is for.';
COMMENT ON COLUMN rate_limit_api_keys.expires_at IS 'When the key ends. infinity: never.';
COMMENT ON COLUMN rate_limit_api_keys.revoked_at IS 'When the key was revoked, or will be.';
COMMENT ON COLUMN rate_limit_api_keys.revoked_by IS 'The role that revoked it.';
COMMENT ON COLUMN rate_limit_api_keys.replaced_by IS 'The number of the key that replaces it.';
COMMENT ON COLUMN rate_limit_rules.name IS 'The name; a renamed rule keeps its counters.';
COMMENT ON COLUMN rate_limit_rules.comment IS 'For people.';
COMMENT ON COLUMN rate_limit_rules.family IS 'Of the rules of a family, the first that matches applies alone.';
COMMENT ON COLUMN rate_limit_rules.priority IS 'The order, highest first.';
COMMENT ON COLUMN rate_limit_rules.mode IS 'enforce, shadow (counts and reports, and refuses nothing) or off.';
COMMENT ON COLUMN rate_limit_rules.action IS 'limit, block or exempt.';
COMMENT ON COLUMN rate_limit_rules.tiers IS 'Tiers of users.';
COMMENT ON COLUMN rate_limit_rules.hosts IS 'Hosts, as in api.example.com,*.example.org.';
COMMENT ON COLUMN rate_limit_rules.paths IS 'Paths, as in /login,/api/v1/*.';
COMMENT ON COLUMN rate_limit_rules.methods IS 'Methods, as in GET,POST.';
COMMENT ON COLUMN rate_limit_rules.networks IS 'Networks of clients.';
COMMENT ON COLUMN rate_limit_rules.count_by IS 'What has a counter of its own: user, key, tier, ip, ip/64, host, route, header:NAME, all; or the first there is, as in user|ip.';
COMMENT ON COLUMN rate_limit_rules.without_header IS 'header:NAME for requests without it. share: they have one counter; skip: the rule does not match.';
COMMENT ON COLUMN rate_limit_rules.valid IS 'When it applies.';
COMMENT ON COLUMN rate_limit_rules.cost IS 'What a request takes.';
COMMENT ON COLUMN rate_limit_rules.settle IS 'What it really cost: header NAME, bytes, json PATH, or as in status 401 403 = 1, else 0.';
COMMENT ON COLUMN rate_limit_rules.status IS 'The HTTP status of a refusal; NULL: 429 for limits, 403 for a block.';
COMMENT ON COLUMN rate_limit_rules.message IS 'The text of a refusal.';
COMMENT ON COLUMN rate_limit_rules.retry_after IS 'The Retry-After of a refusal, as in 30s.';
COMMENT ON COLUMN rate_limit_rules.ban_for IS 'How long proxies ban a sender whom the rule has refused often, as in 1h; empty: no bans.';
COMMENT ON COLUMN rate_limit_rules.ban_after IS 'After how many refusals.';
COMMENT ON COLUMN rate_limit_rules.ban_within IS 'In which time, as in 10m.';
COMMENT ON COLUMN rate_limit_rule_limits.rule IS 'The rule.';
COMMENT ON COLUMN rate_limit_rule_limits.name IS 'The name.';
COMMENT ON COLUMN rate_limit_rule_limits.events IS 'How much may pass; NULL: unlimited.';
COMMENT ON COLUMN rate_limit_rule_limits.per IS 'In which time, from 1 ms.';
COMMENT ON COLUMN rate_limit_rule_limits.calendar IS 'Or in which period: day, week, month or year.';
COMMENT ON COLUMN rate_limit_rule_limits.time_zone IS 'The zone of the calendar; NULL: UTC.';
COMMENT ON COLUMN rate_limit_rule_limits.algorithm IS 'sliding_window, fixed_window, token_bucket, sliding_log or gcra, of the limits with a window.';
COMMENT ON COLUMN rate_limit_rule_limits.burst IS 'How much may pass at once; a token_bucket with less than its events is refilled evenly.';
COMMENT ON COLUMN rate_limit_rule_limits.durable IS 'true: counts survive a crash of the server.';
COMMENT ON COLUMN rate_limit_rule_limits.on_exceed IS 'refuse or overage.';
COMMENT ON COLUMN rate_limit_overrides.rule IS 'The rule.';
COMMENT ON COLUMN rate_limit_overrides.limit_name IS 'The name of its limit.';
COMMENT ON COLUMN rate_limit_overrides.tier IS 'The tier for which it is.';
COMMENT ON COLUMN rate_limit_overrides.user_id IS 'Or the user.';
COMMENT ON COLUMN rate_limit_overrides.key_id IS 'Or the number of the key.';
COMMENT ON COLUMN rate_limit_overrides.events IS 'How much may pass; NULL: unlimited.';
COMMENT ON COLUMN rate_limit_overrides.burst IS 'Another burst.';
COMMENT ON COLUMN rate_limit_overrides.valid IS 'When it holds.';
COMMENT ON COLUMN rate_limit_overrides.reason IS 'For people.';
`
