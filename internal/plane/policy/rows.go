package policy

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Action is the effect of a rule on the requests that it matches, as in the column action.
type Action string

const (
	// Charge takes the limits of the rule. The action "" means Charge.
	Charge Action = "limit"
	// Block refuses the request.
	Block Action = "block"
	// Exempt frees the request from all limits of the policy.
	Exempt Action = "exempt"
)

// Rule is a row of rate_limit_rules with its limits. An empty list matches everything.
type Rule struct {
	// Name identifies the rule. Required.
	Name string
	// Family names a group of rules. At most one rule of a group applies. "" means no group.
	Family string
	// Priority orders rules with the same action. A higher one comes first.
	Priority int64
	// Mode determines whether the rule has an effect. "" means settings.Enforce. A shadow rule does not
	// exempt.
	Mode   settings.Mode
	Action Action

	// Hosts are names in any case and without a port. "*.example.com" matches every name below example.com.
	Hosts []string
	// Paths begin with "/". A segment "*" matches any one segment. A last segment "*" matches the rest of the
	// path, or none: "/api/*" matches "/api", "/api/" and "/api/v1/x".
	Paths []string
	// Methods are names such as GET, in any case.
	Methods []string
	Tiers   []string
	// Networks contain the client's address. IPv4 addresses in IPv6 form count as IPv4.
	Networks []netip.Prefix

	// CountBy determines the key of the rule's counters. It has one or more of user, key, tier, ip, ip/64,
	// host, route, header:NAME, and of alternatives such as user|ip, where the first that a request has
	// counts. Or it has all alone, which is one counter for everybody. Empty means user.
	CountBy []string `json:"count_by"`
	// SkipWithoutHeader determines what happens to requests in which a header of CountBy is missing or empty.
	// If it is set, the rule does not match them. Otherwise they share one counter.
	SkipWithoutHeader bool

	// From and Until bound the time in which the rule is valid, without Until itself. The zero time sets no
	// bound.
	From, Until time.Time

	// Cost is the charge of a request to each limit. 0 means 1.
	Cost int64
	// Settle names the actual cost of a request: see settings.ParseSettle. "" means Cost.
	Settle string
	// Status is the status of a refusal, from 400 to 599. 0 means 429 for limits, and 403 for a block.
	Status int
	// Message is the text of a refusal. "" means the proxy's own text.
	Message string
	// RetryAfter is sent with a refusal. For limits, 0 means the time until the request would pass. For a
	// block, 0 sends none.
	RetryAfter time.Duration

	// Limits are the limits of a rule with the action Charge, at least one.
	Limits []RuleLimit

	// Err, if not nil, is the error of decoding the row. Compile then reports the rule instead of using it.
	Err error `json:"-"`
}

// RuleLimit is a row of rate_limit_rule_limits.
type RuleLimit struct {
	// Name identifies the limit within its rule. Required.
	Name string
	// Limit has the algorithm and the amount. Compile sets its Prefix. With Events 0 no request passes.
	Limit ratelimit.Limit
	// Unlimited ignores the events: only requests with an override are limited.
	Unlimited bool
	// Overage counts beyond the quota and never refuses. It needs a fixed or a sliding window.
	Overage bool
}

// Override is a row of rate_limit_overrides. It replaces the amount of one limit for a tier, a user or an API
// key. Exactly one of Tier, User and KeyID is set.
type Override struct {
	Rule  string
	Limit string `json:"limit_name"`
	Tier  string
	User  string `json:"user_id"`
	KeyID int64  `json:"key_id"`

	// Events is the amount. With 0 no request passes. Unlimited ignores Events.
	Events    int64
	Unlimited bool
	// Burst replaces the burst of the limit. 0 keeps the rule's own.
	Burst int64
	// From and Until bound the time in which the override is valid, as in Rule.
	From, Until time.Time
}

// Ban is a row of rate_limit_bans. It bans Network if that is valid, else the API key with Digest if that is
// set, else User.
type Ban struct {
	Network netip.Prefix
	// Digest, KeyID and User identify an API key that is banned, or a key of a banned user. KeyID is the id
	// of its row, and User owns it.
	Digest string
	KeyID  int64
	User   string
	// Until is the end of the ban. The zero time means never.
	Until  time.Time
	Reason string
}

// Identity is an API key in the database, or a user that the proxy authenticated. It must not be changed or
// copied after its first use.
type Identity struct {
	// Digest is the Digest of the API key. It is "" if the request had no key. User then names the user that
	// the proxy authenticated.
	Digest string
	// Known reports whether the database has the key or the user.
	Known bool
	// KeyID is the id of the key's row. 0 means no key.
	KeyID int64
	// CountedAs is the id of the key that shares its counters with this key. 0 means KeyID.
	CountedAs int64

	User string
	// Tier is the key's own tier, else the user's. "" means Facts.Tier.
	Tier string
	// TierUntil is the time from which Facts.Tier replaces Tier. The zero time means never.
	TierUntil time.Time
	// PeriodStart is a day on which a billing period of the user begins. Months and years of limits that
	// count by user or key begin on such days. Only the date matters. The zero time means calendar months and
	// years.
	PeriodStart time.Time
	// TimeZone is the time zone of these periods. "" means that of the limit.
	TimeZone string

	// ExpiresAt and RevokedAt end the key. The zero time means never.
	ExpiresAt, RevokedAt time.Time

	// Overrides are the overrides for this key and for its user.
	Overrides []Override

	state atomic.Value // a *senderState
}
