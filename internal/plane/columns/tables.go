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
	Tiers: {Name: "rate_limit_tiers", Columns: []Column{
		{Name: "tier"},
		{Name: "rank", Kind: Whole},
		{Name: "comment"},
	}},
	Users: {Name: "rate_limit_users", Columns: []Column{
		{Name: "user_id", Field: "user"},
		{Name: "tier"},
		{Name: "tier_until", Kind: Moment},
		{Name: "period_start", Kind: Day},
		{Name: "time_zone"},
		{Name: "comment"},
	}},
	Keys: {Name: "rate_limit_api_keys", Columns: []Column{
		{Name: "digest", Kind: Digest},
		{Name: "user_id", Field: "user"},
		{Name: "tier"},
		{Name: "hint"},
		{Name: "name"},
		{Name: "expires_at", Kind: Moment},
		{Name: "revoked_at", Kind: Moment},
		{Name: "revoked_by"},
		{Name: "replaced_by", Kind: KeyDigest},
		{Name: "counted_as", Kind: KeyDigest},
	}},
	Rules:  {Name: "rate_limit_rules", Columns: rules},
	Limits: {Name: "rate_limit_rule_limits", Columns: limits()},
	Overrides: {Name: "rate_limit_overrides", Columns: []Column{
		{Name: "rule", Load: "Rule"},
		{Name: "limit_name", Field: "limit", Load: "Limit"},
		{Name: "tier", Load: "Tier"},
		{Name: "user_id", Field: "user", Load: "User"},
		{Name: "key_id", Field: "key", Kind: KeyDigest, Load: "KeyID"},
		{Name: "events", Kind: Amount, Load: "Events"},
		{Name: "burst", Kind: Whole, Load: "Burst"},
		{Name: "valid", Kind: Range, Load: "From"},
		{Name: "reason"},
	}},
}

var rules = []Column{
	{Name: "name"},
	{Name: "comment"},
	{Name: "family", Load: "Family"},
	{Name: "priority", Kind: Whole, Load: "Priority"},
	{Name: "mode", Choices: []string{"enforce", "shadow", "off"}, Load: "Mode"},
	{Name: "action", Choices: []string{"limit", "block", "exempt"}, Load: "Action"},
	{Name: "tiers", Kind: List, Load: "Tiers"},
	{Name: "hosts", Kind: List, Load: "Hosts"},
	{Name: "paths", Kind: List, Load: "Paths"},
	{Name: "methods", Kind: List, Load: "Methods"},
	{Name: "networks", Kind: Networks, Load: "Networks"},
	{Name: "count_by", Kind: List, Load: "CountBy"},
	{Name: "without_header", Choices: []string{"share", "skip"}, Load: "SkipWithoutHeader", LoadIs: "skip"},
	{Name: "valid", Kind: Range, Load: "From"},
	{Name: "cost", Kind: Whole, Load: "Cost"},
	{Name: "settle", Load: "Settle"},
	{Name: "status", Kind: Whole, Load: "Status"},
	{Name: "message", Load: "Message"},
	{Name: "retry_after", Kind: Duration, Load: "RetryAfter"},
}

func limits() []Column {
	var algorithms []string
	for _, a := range ratelimit.Algorithms() {
		algorithms = append(algorithms, a.String())
	}
	return []Column{
		{Name: "rule"},
		{Name: "name", Load: "Name"},
		{Name: "events", Kind: Amount, Load: "Limit.Events"},
		{Name: "per", Kind: Duration, Load: "Limit.Window"},
		{Name: "calendar", Choices: []string{"day", "week", "month", "year"}, First: 1, Load: "Limit.Calendar"},
		{Name: "time_zone", Load: "Limit.Zone"},
		{Name: "algorithm", Choices: algorithms, Load: "Limit.Algorithm"},
		{Name: "burst", Kind: Whole, Load: "Limit.Burst"},
		{Name: "durable", Kind: Flag, Load: "Limit.Durable"},
		{Name: "on_exceed", Choices: []string{"refuse", "overage"}, Load: "Overage", LoadIs: "overage"},
	}
}
