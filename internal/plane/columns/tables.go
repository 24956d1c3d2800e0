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

// Tables are all tables.
var Tables = [Count]Table{
	Tiers: {Kind: "tier", Section: "tiers", Name: "rate_limit_tiers", Columns: []Column{
		{Name: "tier", Needed: true, Key: true},
		{Name: "rank", Kind: Whole, Default: "0"},
		{Name: "comment"},
	}},
	Users: {Kind: "user", Section: "users", Name: "rate_limit_users", Columns: []Column{
		{Name: "user_id", Field: "user", Needed: true, Key: true},
		{Name: "tier", Needed: true},
		{Name: "tier_until", Kind: Moment, Default: Never},
		{Name: "period_start", Kind: Day},
		{Name: "time_zone", Default: "UTC"},
		{Name: "comment"},
	}},
	Keys: {Kind: "key", Section: "keys", Name: "rate_limit_api_keys", Columns: []Column{
		{Name: "digest", Kind: Digest, Needed: true, Key: true},
		{Name: "user_id", Field: "user", Needed: true, NoSetting: true},
		{Name: "tier"},
		{Name: "hint", NoSetting: true},
		{Name: "name"},
		{Name: "expires_at", Kind: Moment, Default: Never},
		{Name: "revoked_at", Kind: Moment, NoSetting: true},
		{Name: "revoked_by", NoSetting: true},
		{Name: "replaced_by", Kind: KeyDigest, Late: true, NoSetting: true},
	}},
	Rules:  {Kind: "rule", Section: "rules", Name: "rate_limit_rules", Columns: rules},
	Limits: {Kind: "limit", Section: "limits", Name: "rate_limit_rule_limits", Columns: limits()},
	Overrides: {Kind: "override", Section: "overrides", Name: "rate_limit_overrides", Columns: []Column{
		{Name: "rule", Needed: true, Key: true, Load: "Rule"},
		{Name: "limit_name", Field: "limit", Needed: true, Key: true, Load: "Limit"},
		{Name: "tier", Key: true, Load: "Tier"},
		{Name: "user_id", Field: "user", Key: true, Load: "User"},
		{Name: "key_id", Field: "key", Kind: KeyDigest, Key: true, Load: "KeyID"},
		{Name: "events", Kind: Amount, Needed: true, Load: "Events"},
		{Name: "burst", Kind: Whole, Min: 1, Max: ratelimit.MaxEvents, Load: "Burst"},
		{Name: "valid", Kind: Range, Default: Always, Key: true, Load: "From"},
		{Name: "reason"},
	}},
}

var rules = []Column{
	{Name: "name", Needed: true, Key: true},
	{Name: "comment"},
	{Name: "family", Load: "Family"},
	{Name: "priority", Kind: Whole, Default: "100", Load: "Priority"},
	{Name: "mode", Default: "enforce", Choices: []string{"enforce", "shadow", "off"}, Load: "Mode"},
	{Name: "action", Default: "limit", Choices: []string{"limit", "block", "exempt"}, Load: "Action"},
	{Name: "tiers", Kind: List, Load: "Tiers"},
	{Name: "hosts", Kind: List, Load: "Hosts"},
	{Name: "paths", Kind: List, Load: "Paths"},
	{Name: "methods", Kind: List, Load: "Methods"},
	{Name: "networks", Kind: Networks, Load: "Networks"},
	{Name: "count_by", Kind: List, Default: []string{"user"}, Load: "CountBy"},
	{Name: "without_header", Default: "share", Choices: []string{"share", "skip"}, Load: "SkipWithoutHeader", LoadIs: "skip"},
	{Name: "valid", Kind: Range, Default: Always, Load: "From"},
	{Name: "cost", Kind: Whole, Min: 1, Max: ratelimit.MaxEvents, Default: "1", Load: "Cost"},
	{Name: "settle", Load: "Settle"},
	{Name: "status", Kind: Whole, Min: 400, Max: 599, Load: "Status"},
	{Name: "message", Load: "Message"},
	{Name: "retry_after", Kind: Duration, Load: "RetryAfter"},
}

func limits() []Column {
	var algorithms []string
	for _, a := range ratelimit.Algorithms() {
		algorithms = append(algorithms, a.String())
	}
	return []Column{
		{Name: "rule", Needed: true, Key: true}, // in a file that of the list
		{Name: "name", Needed: true, Key: true, Load: "Name"},
		{Name: "events", Kind: Amount, Needed: true, NoSetting: true, Load: "Limit.Events"},
		{Name: "per", Kind: Duration, NoSetting: true, Load: "Limit.Window"},
		{Name: "calendar", Choices: []string{"day", "week", "month", "year"}, First: 1, NoSetting: true, Load: "Limit.Calendar"},
		{Name: "time_zone", NoSetting: true, Load: "Limit.Zone"},
		{Name: "algorithm", Default: "sliding_window", Choices: algorithms, Load: "Limit.Algorithm"},
		{Name: "burst", Kind: Whole, Min: 1, Max: ratelimit.MaxEvents, Load: "Limit.Burst"},
		{Name: "durable", Kind: Flag, Default: "false", Load: "Limit.Durable"},
		{Name: "on_exceed", Default: "refuse", Choices: []string{"refuse", "overage"}, Load: "Overage", LoadIs: "overage"},
	}
}
