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
	// Charge takes the limits of the rule. It is the default; "" is Charge, too.
	Charge Action = "limit"
	// Block refuses.
	Block Action = "block"
	// Exempt frees a request from all limits of the policy.
	Exempt Action = "exempt"
)

// Rule is a row of rate_limit_rules with its limits. An empty list matches everything.
type Rule struct {
	// Name identifies the rule. Required.
	Name string
	// Family names a group of rules. Only one of a group applies. "" is none.
	Family string
	// Priority puts rules in order: the higher one comes first.
	Priority int64
	// Mode says whether the rule has an effect; "" is settings.Enforce. A Shadow rule exempts from nothing.
	Mode   settings.Mode
	Action Action

	// Hosts are names in any case and without a port; "*.example.com" is every name
	// below example.com.
	Hosts []string
	// Paths begin with "/". A segment "*" is any one segment; a last segment "*" is the
	// rest of the path, however long, and may be missing with its slash: "/api/*" is
	// "/api", "/api/" and "/api/v1/x".
	Paths []string
	// Methods are names such as GET, in any case.
	Methods []string
	Tiers   []string
	// Networks hold the client's address. IPv4 addresses in IPv6 form count as IPv4.
	Networks []netip.Prefix

	// CountBy says for what a limit is counted: any of user, key, tier, ip, ip/64, host, route, header:NAME,
	// or of alternatives such as user|ip, where the first that a request has counts; or all alone, which is
	// one counter for everybody. Empty is user.
	CountBy []string `json:"count_by"`
	// SkipWithoutHeader is for a header in CountBy: the rule does not match a request in which
	// the header is missing or empty. Otherwise all such requests have one counter.
	SkipWithoutHeader bool

	// From and Until bound the time in which the rule is valid. Until itself is excluded. The zero time sets
	// no bound.
	From, Until time.Time

	// Cost is the charge of a request to each limit. 0 is 1.
	Cost int64
	// Settle says what a request really cost, see ParseSettle; "" is Cost.
	Settle string
	// Status is of the answer to a refused request, from 400 to 599. 0 is 429 for limits
	// and 403 for a block.
	Status int
	// Message is the text of that answer; "" is the proxy's own.
	Message string
	// RetryAfter is in the answer to a refused request. 0 is none for a block, and for limits
	// the time until the request would pass.
	RetryAfter time.Duration

	// Limits are for Charge alone, which needs at least one.
	Limits []RuleLimit

	// Err says why the row of the rule cannot be used. The rule is then left out and reported.
	Err error `json:"-"`
}

// RuleLimit is a row of rate_limit_rule_limits.
type RuleLimit struct {
	// Name identifies the limit within its rule. Required.
	Name string
	// Limit has the algorithm and the amount. Compile sets its Prefix. Events of 0 let nothing pass.
	Limit ratelimit.Limit
	// Unlimited ignores the events: the limit holds only where an override has an amount.
	Unlimited bool
	// Overage counts beyond the quota and never refuses. It needs a fixed or a sliding
	// window.
	Overage bool
}

// Override is a row of rate_limit_overrides: another amount of one limit for a tier, a
// user or an API key. Exactly one of Tier, User and KeyID is set.
type Override struct {
	Rule  string
	Limit string `json:"limit_name"`
	Tier  string
	User  string `json:"user_id"`
	KeyID int64  `json:"key_id"`

	// Events are the amount; 0 lets nothing pass. Unlimited ignores them.
	Events    int64
	Unlimited bool
	// Burst is that of the limit; 0 keeps the rule's own.
	Burst int64
	// From and Until are when the override is valid, as in Rule.
	From, Until time.Time
}

// Ban is a row of rate_limit_bans: of Network, of the API key with the digest Digest, else of User.
type Ban struct {
	Network netip.Prefix
	// Digest is of an API key that is banned itself, or by a ban of its user. KeyID is of its row, and User
	// has it.
	Digest [32]byte `json:"-"`
	KeyID  int64
	User   string
	// Until is when the ban ends; the zero time is never.
	Until  time.Time
	Reason string
}

// Identity is an API key, or a user that the proxy authenticated, as in the database. It does not change
// after its first use, and is not copied.
type Identity struct {
	// Digest is of the API key (see Digest). It is zero if the request had no key, and
	// User then names the user that the proxy authenticated.
	Digest [32]byte `json:"-"`
	// Known is whether the database has the key, or the user.
	Known bool
	// KeyID is of the key's row; 0 without a key.
	KeyID int64
	// CountedAs is the id of the key that this one shares counters with; 0 is KeyID.
	CountedAs int64

	User string
	// Tier is the key's own, else the user's; "" is Facts.Tier.
	Tier string
	// TierUntil is when Tier ends and Facts.Tier counts; the zero time is never.
	TierUntil time.Time
	// PeriodStart is a day on which a billing period of the user begins: months and years
	// that are counted by user or key begin on such days. Only the date counts. The zero
	// time is the calendar's own months and years.
	PeriodStart time.Time
	// TimeZone is that of these periods; "" is that of the limit.
	TimeZone string

	// ExpiresAt and RevokedAt end the key; the zero time is never.
	ExpiresAt, RevokedAt time.Time

	// Overrides are those for this key and for the user.
	Overrides []Override

	amounts atomic.Value // an *amounts, see amount.go
}
