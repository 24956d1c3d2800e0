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
	// Tier is the tier of a request if its identity has none, such as anonymous.
	Tier string
	// RejectUnknown refuses a request with an unknown, expired or revoked API key. Otherwise
	// such a request counts as one without a key.
	RejectUnknown bool
	// Address is the client's. The zero Addr is unknown: it is in no network.
	Address netip.Addr
	// Assumed says that Address is that of the connection, because the header that should have the client's
	// has none. A rule that exempts networks does not match it.
	Assumed bool
	Method  string
	// Host and Path are as NormalHost and NormalPath return them.
	Host, Path string
	// Route is the proxy's name for the route that the request took; "" is none.
	Route string
	// Header is read only by rules that count by a header.
	Header http.Header
	// KeyHeaders are the headers that hold the API key, in their canonical form. Keys of
	// counters that contain one of them are stored as digests, see settings.CredentialHeader.
	KeyHeaders []string
}

// Reason says why a request was refused, as in logs.
type Reason string

const (
	// NotRefused is the reason of a request that the policy alone does not refuse.
	NotRefused Reason = ""
	// UnknownKey means that the API key is not in the database.
	UnknownKey Reason = "unknown_key"
	// KeyExpired means that the API key was valid until its time ended.
	KeyExpired Reason = "key_expired"
	// KeyRevoked means that the API key was revoked.
	KeyRevoked Reason = "key_revoked"
	// Banned means that the network, the user or the key is shut out.
	Banned Reason = "banned"
	// Blocked means that a block rule matched.
	Blocked Reason = "blocked"
	// NoQuota means that a limit lets nothing pass.
	NoQuota Reason = "no_quota"
	// AmbiguousPath means that the verdict depends on whether the server ignores the parameters of
	// the path, see NormalPath.
	AmbiguousPath Reason = "ambiguous_path"
)

// String returns the reason, for log fields that take a fmt.Stringer.
func (r Reason) String() string { return string(r) }

// Mark says which limit a hit of a Verdict is of, and what its refusal means. It is
// part of the snapshot and does not change.
type Mark struct {
	Rule, Limit string
	// Shadow: the hit is counted and reported, and refuses nothing.
	Shadow bool
	// Overage: the hit never refuses. Its ratelimit.Limit has more Events than are ever used;
	// what was used beyond Quota is the overage.
	Overage bool
	// Quota is the amount: the full quota of the limit.
	Quota int64
	// From is the source of the amount: rule, tier, user or key.
	From string

	// Status, Message and RetryAfter are of the answer if the limit refuses, see Rule. Status is
	// 0 of a rule that exempts.
	Status     int
	Message    string
	RetryAfter time.Duration

	// Settle is Rule.Settle, or nil. It must not be changed.
	Settle *settings.Settle

	// simple: neither Shadow nor Overage nor of a limit InFlight, nothing to settle, and the answer is a
	// proxy's own.
	simple bool
}

// Verdict is the decision of the policy on a request. The next Evaluate uses its memory again.
type Verdict struct {
	// User and Tier are the request's; User is "" for nobody. KeyID is 0 without a key.
	User, Tier string
	KeyID      int64

	// Rule is the rule that refused or exempted the request, else the first that charges
	// it.
	Rule string

	// Endpoint has the paths of the first rule that matched and has some, as one text; "" is none.
	Endpoint string

	// Reason says why the request is refused. Status, Message and RetryAfter are of the answer. Message is ""
	// for the proxy's own text, and RetryAfter is 0 for none.
	Reason     Reason
	Status     int
	Message    string
	RetryAfter time.Duration

	// Mark is of the rule or the limit that refused the request, else nil.
	Mark *Mark

	// Ban is the ban that refused the request, else nil. It must not be changed.
	Ban *Ban

	// Ended is the sender if its API key is revoked or has expired, and the request is refused; else nil. It
	// must not be changed.
	Ended *Identity

	// Exempt: no limit of the policy applies.
	Exempt bool

	// Hits are taken together, all or nothing, except those of shadow rules: they come last, and are Apart.
	// Marks[i] is about Hits[i]. What the marks are must not be changed.
	Hits  []ratelimit.Hit
	Marks []*Mark

	// Simple: there are hits, none of them is of a shadow rule, of a limit with overage or InFlight, or to be
	// settled, and the answer to a refusal is 429 without a message and a time of the rule's own.
	Simple bool

	// Would are the shadow rules without a count that would have had an effect: block
	// and exempt rules, and limits that let nothing pass.
	Would []*Mark

	// impersonal: personal rules are left out, because it is not known who sends the request.
	impersonal bool

	// Memory of Evaluate.
	found    []*rule
	limits   []*limit // limits[i] is of Hits[i], before charge drops some
	families []string // those of an enforced rule that charges
}

// Refused reports whether the policy alone refuses the request. Such a request has no hits.
func (o *Verdict) Refused() bool { return o.Reason != NotRefused }

// Reset forgets the request, and keeps the memory for the next one.
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

// RefuseAmbiguous refuses a request, whatever the verdict was.
func RefuseAmbiguous(o *Verdict) {
	refuse(o, AmbiguousPath, ambiguous)
	o.Mark = nil
	o.Simple = false
	o.Exempt = false
}

var ambiguous = &Mark{Status: 400}
