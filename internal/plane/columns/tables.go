package columns

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// The tables, in the order in which rows refer to rows of tables before.
const (
	Tiers = iota
	Users
	Keys
	Rules
	Limits
	Overrides
	Count // of the tables
)

const (
	forPeople  = "for people"
	amountHelp = "how much may pass; NULL: unlimited"
)

// Tables are all tables.
var Tables = [Count]Table{
	Tiers: {Kind: "tier", Section: "tiers", Name: "rate_limit_tiers", Columns: []Column{
		{Name: "tier", Needed: true, Key: true, Help: "the name"},
		{Name: "rank", Kind: Whole, Default: "0", Help: "the order of tiers in lists, lowest first"},
		{Name: "comment", Help: forPeople},
	}},
	Users: {Kind: "user", Section: "users", Name: "rate_limit_users", Columns: []Column{
		{Name: "user_id", Field: "user", Needed: true, Key: true, Help: "the name"},
		{Name: "tier", Needed: true, Help: "the tier of the user"},
		{Name: "tier_until", Kind: Moment, Default: Never, Help: "when the tier ends: 90d, 2026-12-31 or never"},
		{Name: "period_start", Kind: Day, Help: "a day on which a billing period begins"},
		{Name: "time_zone", Default: "UTC", Help: "the zone of the billing periods, as in Europe/Berlin"},
		{Name: "comment", Help: forPeople},
	}},
	Keys: {Kind: "key", Section: "keys", Name: "rate_limit_api_keys", Columns: []Column{
		{Name: "digest", Kind: Digest, Needed: true, Key: true, Help: "the SHA-256 of the key"},
		{Name: "user_id", Field: "user", Needed: true, NoSetting: true, Help: "whose key it is"},
		{Name: "tier", Help: "the tier of requests with the key; empty: that of the user"},
		{Name: "hint", NoSetting: true, Help: "the first characters of the key, at most 16"},
		{Name: "name", Help: "what the key is for"},
		{Name: "expires_at", Kind: Moment, Default: Never, Help: "when the key ends: 90d, 2026-12-31 or never"},
		{Name: "revoked_at", Kind: Moment, NoSetting: true, Help: "when the key was revoked, or will be"},
		{Name: "revoked_by", NoSetting: true, Help: "the role that revoked it"},
		{Name: "replaced_by", Kind: KeyDigest, Late: true, NoSetting: true, Help: "the number of the key that replaces it"},
	}},
	Rules:  {Kind: "rule", Section: "rules", Name: "rate_limit_rules", Columns: rules},
	Limits: {Kind: "limit", Section: "limits", Name: "rate_limit_rule_limits", Columns: limits()},
	Overrides: {Kind: "override", Section: "overrides", Name: "rate_limit_overrides", Columns: []Column{
		{Name: "rule", Needed: true, Key: true, Load: "Rule", Help: "the rule"},
		{Name: "limit_name", Field: "limit", Needed: true, Key: true, Load: "Limit", Help: "the name of its limit"},
		{Name: "tier", Key: true, Load: "Tier", Help: "the tier for which it is"},
		{Name: "user_id", Field: "user", Key: true, Load: "User", Help: "or the user"},
		{Name: "key_id", Field: "key", Kind: KeyDigest, Key: true, Load: "KeyID", Help: "or the number of the key"},
		{Name: "events", Kind: Amount, Needed: true, Load: "Events", Help: amountHelp},
		{Name: "burst", Kind: Whole, Min: 1, Max: ratelimit.MaxEvents, Load: "Burst", Help: "another burst"},
		{Name: "valid", Kind: Range, Default: Always, Key: true, Load: "From", Help: "when it holds"},
		{Name: "reason", Help: forPeople},
	}},
}

var rules = []Column{
	{Name: "name", Needed: true, Key: true, Help: "the name; a renamed rule begins new counters"},
	{Name: "comment", Help: forPeople},
	{Name: "family", Load: "Family", Help: "of the rules of a family, the first that matches applies alone"},
	{Name: "priority", Kind: Whole, Default: "100", Load: "Priority", Help: "the order, highest first"},
	{Name: "mode", Default: "enforce", Choices: []string{"enforce", "shadow", "off"}, Load: "Mode",
		Help: "enforce, shadow (counts and reports, and refuses nothing) or off"},
	{Name: "action", Default: "limit", Choices: []string{"limit", "block", "exempt"}, Load: "Action", Help: "limit, block or exempt"},
	{Name: "tiers", Kind: List, Load: "Tiers", Help: "tiers of users"},
	{Name: "hosts", Kind: List, Load: "Hosts", Help: "hosts, as in api.example.com,*.example.org"},
	{Name: "paths", Kind: List, Load: "Paths", Help: "paths, as in /login,/api/v1/*"},
	{Name: "methods", Kind: List, Load: "Methods", Help: "methods, as in GET,POST"},
	{Name: "networks", Kind: Networks, Load: "Networks", Help: "networks of clients"},
	{Name: "count_by", Kind: List, Default: []string{"user"}, Load: "CountBy",
		Help: "what has a counter of its own: user, key, tier, ip, ip/64, host, route, header:NAME, all; or the first there is, as in user|ip"},
	{Name: "without_header", Default: "share", Choices: []string{"share", "skip"}, Load: "SkipWithoutHeader", LoadIs: "skip",
		Help: "header:NAME for requests without it. share: they have one counter; skip: the rule does not match"},
	{Name: "valid", Kind: Range, Default: Always, Load: "From", Help: "when it applies: FROM..UNTIL"},
	{Name: "cost", Kind: Whole, Min: 1, Max: ratelimit.MaxEvents, Default: "1", Load: "Cost", Help: "what a request takes"},
	{Name: "settle", Load: "Settle", Help: "what it really cost: header NAME, bytes, json PATH, or as in status 401 403 = 1, else 0"},
	{Name: "status", Kind: Whole, Min: 400, Max: 599, Load: "Status", Help: "the HTTP status of a refusal; NULL: 429 for limits, 403 for a block"},
	{Name: "message", Load: "Message", Help: "the text of a refusal"},
	{Name: "retry_after", Kind: Duration, Load: "RetryAfter", Help: "the Retry-After of a refusal, as in 30s"},
}

func limits() []Column {
	var algorithms []string
	for _, a := range ratelimit.Algorithms() {
		algorithms = append(algorithms, a.String())
	}
	return []Column{
		{Name: "rule", Needed: true, Key: true, Help: "the rule"}, // in a file that of the list
		{Name: "name", Needed: true, Key: true, Load: "Name", Help: "the name"},
		{Name: "events", Kind: Amount, Needed: true, NoSetting: true, Load: "Limit.Events", Help: amountHelp},
		{Name: "per", Kind: Duration, NoSetting: true, Load: "Limit.Window", Help: "in which time, from 1 ms"},
		{Name: "calendar", Choices: []string{"day", "week", "month", "year"}, First: 1, NoSetting: true, Load: "Limit.Calendar",
			Help: "or in which period: day, week, month or year"},
		{Name: "time_zone", NoSetting: true, Load: "Limit.Zone", Help: "the zone of the calendar; NULL: UTC"},
		{Name: "algorithm", Default: "sliding_window", Choices: algorithms, Load: "Limit.Algorithm",
			Help: "sliding_window, fixed_window, token_bucket, sliding_log or gcra, of the limits with a window"},
		{Name: "burst", Kind: Whole, Min: 1, Max: ratelimit.MaxEvents, Load: "Limit.Burst",
			Help: "how much may pass at once; a token_bucket with less than its events is refilled evenly"},
		{Name: "durable", Kind: Flag, Default: "false", Load: "Limit.Durable", Help: "true: counts survive a crash of the server"},
		{Name: "on_exceed", Default: "refuse", Choices: []string{"refuse", "overage"}, Load: "Overage", LoadIs: "overage", Help: "refuse or overage"},
	}
}
