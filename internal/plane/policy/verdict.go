package policy

import (
	"net/http"
	"net/netip"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Facts are the properties of a request that rules read.
type Facts struct {
	// Tier is the tier of a request without an identity that has a tier, such as anonymous.
	Tier string
	// RejectUnknown refuses requests with an unknown, expired or revoked API key. Otherwise they count as
	// requests without a key.
	RejectUnknown bool
	// Address is the client's address. The zero Addr means that it is unknown, and is in no network.
	Address netip.Addr
	// Assumed reports that Address is that of the connection, because the header for the client's address is
	// missing. See matchesNetwork.
	Assumed bool
	Method  string
	// Host and Path are results of NormalHost and NormalPath.
	Host, Path string
	// Route is the proxy's name for the route of the request. "" means none.
	Route string
	// Header is read only by rules that count by a header.
	Header http.Header
	// KeyHeaders are the canonical names of the headers that may have the API key. A counter's key with one
	// of them is stored as a digest, see settings.CredentialHeader.
	KeyHeaders []string
}

// Reason is the reason for a refusal, as in logs.
type Reason string

const (
	// NotRefused means that the policy alone does not refuse the request.
	NotRefused Reason = ""
	// UnknownKey means that the API key is not in the database.
	UnknownKey Reason = "unknown_key"
	// KeyExpired means that the API key has expired.
	KeyExpired Reason = "key_expired"
	// KeyRevoked means that the API key was revoked.
	KeyRevoked Reason = "key_revoked"
	// Banned means that the network, the user or the key is banned.
	Banned Reason = "banned"
	// Blocked means that a block rule matched.
	Blocked Reason = "blocked"
	// NoQuota means that a limit has the amount 0.
	NoQuota Reason = "no_quota"
	// AmbiguousPath means that the verdict depends on how the server reads the path, see NormalPath.
	AmbiguousPath Reason = "ambiguous_path"
)

// String returns the reason, for log fields that take a fmt.Stringer.
func (r Reason) String() string { return string(r) }

// Mark describes the limit of a hit in a Verdict, and the answer if that limit refuses. It belongs to the
// snapshot and must not be changed.
type Mark struct {
	Rule, Limit string
	// Shadow reports that the hit is counted and reported, and never refuses.
	Shadow bool
	// Overage reports that the hit never refuses. Its ratelimit.Limit has more Events than requests can use.
	// The use beyond Quota is the overage.
	Overage bool
	// Quota is the amount of the limit for the sender.
	Quota int64
	// From is the source of the amount: rule, tier, user or key.
	From string

	// Status, Message and RetryAfter describe the answer if the limit refuses, see Rule. Status is 0 for a
	// rule that exempts.
	Status     int
	Message    string
	RetryAfter time.Duration

	// Settle is Rule.Settle, or nil. It must not be changed.
	Settle *settings.Settle

	// simple reports the conditions of Verdict.Simple for this hit.
	simple bool
}

// Verdict is the decision of the policy on a request. The next Evaluate with the same Verdict reuses its
// memory.
type Verdict struct {
	// User, Tier and KeyID describe the sender. User is "" for an anonymous request, and KeyID is 0 without a
	// key.
	User, Tier string
	KeyID      int64

	// Rule is the rule that refused or exempted the request, else the first rule that charges it.
	Rule string

	// Endpoint is the text of the paths of the first matching rule that has paths. "" means none.
	Endpoint string

	// Reason is the reason for the refusal. Status, Message and RetryAfter describe the answer: Message ""
	// means the proxy's own text, and RetryAfter 0 means none.
	Reason     Reason
	Status     int
	Message    string
	RetryAfter time.Duration

	// Mark describes the rule or the limit that refused the request, else it is nil.
	Mark *Mark

	// Ban is the ban that refused the request, else nil. It must not be changed.
	Ban *Ban

	// Ended is the sender of a request that is refused because its API key is revoked or has expired, else
	// nil. It must not be changed.
	Ended *Identity

	// Exempt reports that no limit of the policy applies.
	Exempt bool

	// Hits are taken together, all or nothing, except those of shadow rules, which come last and are Apart.
	// Marks[i] describes Hits[i] and must not be changed.
	Hits  []ratelimit.Hit
	Marks []*Mark

	// Simple reports that there are hits, and that each is of an enforced rule, without overage, settlement
	// and InFlight, with status 429 and without a message or a RetryAfter of the rule.
	Simple bool

	// Would has the shadow rules without a hit that would have had an effect: block and exempt rules, and
	// limits with the amount 0.
	Would []*Mark

	// senderUnknown omits rules that need the sender, because the sender was not looked up.
	senderUnknown bool

	// Memory of Evaluate.
	found    []*rule
	limits   []*limit // limits[i] belongs to Hits[i], until charge drops some
	families []string // the families of the enforced rules that charge
}

// Refused reports whether the policy alone refuses the request. Such a request has no hits.
func (o *Verdict) Refused() bool { return o.Reason != NotRefused }

// Reset drops all references to the request, and keeps the memory for the next one.
func (o *Verdict) Reset() {
	for i := range o.Hits {
		o.Hits[i] = ratelimit.Hit{} // a key may be a part of a long request
	}
	clearVerdict(o)
}

// clearVerdict empties a verdict for the next request.
func clearVerdict(o *Verdict) {
	*o = Verdict{
		Hits: o.Hits[:0], Marks: o.Marks[:0], Would: o.Would[:0],
		found: o.found, limits: o.limits[:0], families: o.families[:0],
	}
}

// refuse drops the hits and sets the answer.
func refuse(o *Verdict, reason Reason, m *Mark) {
	o.Hits = o.Hits[:0]
	o.Marks = o.Marks[:0]
	o.Rule = m.Rule
	o.Reason = reason
	o.Mark = m
	o.Status = m.Status
	o.Message = m.Message
	o.RetryAfter = m.RetryAfter
}

// RefuseAmbiguous replaces any verdict by a refusal with AmbiguousPath.
func RefuseAmbiguous(o *Verdict) {
	refuse(o, AmbiguousPath, ambiguous)
	o.Mark = nil
	o.Simple = false
	o.Exempt = false
}

var ambiguous = &Mark{Status: 400}
