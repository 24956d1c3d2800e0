package policy

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Action is the effect of a rule on the requests that it matches, as in the column rate_limit_rules.action.
type Action string

const (
	// ActionLimit takes the limits of the rule. The action "" means ActionLimit.
	ActionLimit Action = "limit"
	// ActionBlock refuses the request.
	ActionBlock Action = "block"
	// ActionExempt frees the request from all limits of the policy.
	ActionExempt Action = "exempt"
)

// Rule is a row of rate_limit_rules with its limits. An empty list of conditions matches every request.
type Rule struct {
	// Name identifies the rule. Required.
	Name string
	// CountedAs, unless it is "", is the name by which the rule counts in place of Name.
	CountedAs string `json:"counted_as"`
	// Family names a group of rules. At most one rule of a family applies to a request. "" means no family.
	Family string
	// Priority orders rules with the same action. Rules with higher priority come first.
	Priority int64
	// Mode determines whether the rule has an effect. "" means option.Enforce. A shadow rule does not
	// exempt.
	Mode   option.Mode
	Action Action

	// Hosts are names without a port, in upper or lower case. "*.example.com" matches every name below
	// example.com.
	Hosts []string
	// Paths begin with "/". A segment "*" matches any one segment. As the last segment, "*" matches any
	// number of segments: "/api/*" matches "/api", "/api/" and "/api/v1/x".
	Paths []string
	// Methods are names such as "GET", in upper or lower case.
	Methods []string
	// Tiers are the tiers of senders.
	Tiers []string
	// Networks are networks of client addresses. IPv4 addresses in IPv6 form count as IPv4.
	Networks []netip.Prefix

	// CountBy determines the key of the rule's counters. Its elements are "user", "key", "tier", "ip" (see
	// NetworkOf), "ip/128", "host", "route" and "header:NAME". Alternatives such as "user|ip" use the first
	// that the request has. The element "all", which must be the only one, is one counter for all requests.
	// Empty means "user".
	CountBy []string `json:"count_by"`
	// WithoutHeader is for requests in which a header of CountBy is missing or empty: with WithoutShare or
	// "", they share one counter, with WithoutSkip the rule does not apply, and WithoutRefuse refuses them.
	WithoutHeader option.Without `json:"without_header"`

	// The rule is valid from From until before Until, in microseconds since the Unix epoch. 0 sets no bound.
	From, Until int64

	// Cost is the charge of a request to each limit of requests. 0 means 1.
	Cost int64
	// Settle describes how to read the actual cost from the response: see option.ParseCostSource. "" means
	// Cost.
	Settle string
	// Status is the HTTP status of a refusal, from 400 to 599. 0 means 429 for limits, and 403 for a block
	// rule.
	Status int
	// Message is the body of a refusal. "" means the proxy's own text.
	Message string
	// RetryAfter is sent with a refusal. For limits, 0 means the time until the request would pass. For a
	// block rule, 0 sends no Retry-After.
	RetryAfter time.Duration

	// Limits has the limits of a rule with the action Charge, at least one.
	Limits []RuleLimit

	// Newer has the columns by which only newer programs match the rule. The rule is then unusable.
	Newer string

	// Err, if not nil, is the error of decoding the row. Compile then reports the rule instead of using it.
	Err error `json:"-"`
}

// RuleLimit is a row of rate_limit_rule_limits.
type RuleLimit struct {
	// Name identifies the limit within its rule. Required.
	Name string
	// Limit has the algorithm and the amount, and in CountedAs the name by which it counts, or "" for Name.
	// Compile sets its Prefix, and the whole CountedAs. If Events is 0, no request passes.
	Limit ratelimit.Limit
	// Unit names what the limit counts. "" means option.Requests. Output is the output that a request is
	// charged before its response, if the limit counts tokens. 0 means the default.
	Unit   option.Unit
	Output int64
	// Batches is option.PassBatches if batches pass a limit that counts tokens.
	Batches string
	// Hidden hides the limit in responses: no field describes it.
	Hidden bool
	// Notify has the percentages of the quota that make a notice. Nil makes none.
	Notify []int64
	// Unlimited ignores Limit.Events: only requests with an override are limited.
	Unlimited bool
	// Overage counts beyond the quota and refuses no request. It needs a fixed or a sliding window.
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

	// Events is the amount. If it is 0, no request passes. Unlimited ignores Events.
	Events    int64
	Unlimited bool
	// Burst replaces the burst of the limit. 0 keeps the limit's own burst.
	Burst int64
	// The override is valid from From until before Until, in microseconds since the Unix epoch. 0 sets no
	// bound.
	From, Until int64
}

// Ban is a row of rate_limit_bans. It bans Network if Network is valid, else the API key with Digest if
// Digest is set, else User.
type Ban struct {
	Network netip.Prefix
	// Digest, KeyID and User identify a banned API key, or a key of a banned user. KeyID is the id of the
	// key's row, and User owns the key.
	Digest string
	KeyID  int64
	User   string
	// Until is the end of the ban, in microseconds since the Unix epoch. 0 means never.
	Until  int64
	Reason string
}

// Identity is an API key, or a user that the proxy authenticated. It must not be changed or copied after its
// first use.
type Identity struct {
	// Digest is the digest of the API key (see func Digest), or "" without an API key. User is then the user
	// that the proxy authenticated.
	Digest string
	// Known reports whether the database has the key or the user.
	Known bool
	// unread marks a sender that was not looked up: only Digest or User is set. Bans and the rules that do
	// not need the sender apply.
	unread bool
	// KeyID is the id of the key's row. It is 0 without an API key.
	KeyID int64
	// CountedAs is the id of the key that shares its counters with this key. 0 means KeyID.
	CountedAs int64

	// User is the authenticated user, or the owner of the key.
	User string
	// UserCountedAs, unless it is "", is the name by which User counts and is in the ledger.
	UserCountedAs string
	// Ancestors are the users above User, the nearest first. Their limits by user apply, too.
	Ancestors []*Ancestor
	// Tier is the key's own tier, else the user's. "" means Facts.Tier.
	Tier string
	// TierUntil is the time from which Facts.Tier replaces Tier, in microseconds since the Unix epoch. 0
	// means never.
	TierUntil int64
	// PeriodStart anchors the user's billing periods: the months and years of limits by user or key start on
	// its day. Only the date is used. The zero time means calendar months and years.
	PeriodStart time.Time
	// TimeZone is the time zone of the billing periods. "" means the limit's time zone.
	TimeZone string

	// The key is valid until the earlier of ExpiresAt and RevokedAt, in microseconds since the Unix epoch. 0
	// means never.
	ExpiresAt, RevokedAt int64

	// Overrides has the overrides for this key and its user.
	Overrides []Override

	state atomic.Value // a *senderState
}

// Ancestor is a user above another one, with the fields of an Identity. It is a type of its own, because
// Yaegi cannot decode a type that contains itself.
type Ancestor struct {
	User, UserCountedAs string
	Tier                string
	TierUntil           int64
	PeriodStart         time.Time
	TimeZone            string
	Overrides           []Override

	state atomic.Value // a *senderState
}

// CountsAs returns the name by which a user counts.
func CountsAs(user, countedAs string) string {
	if countedAs != "" {
		return countedAs
	}
	return user
}
