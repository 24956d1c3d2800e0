package policy

import (
	"net/http"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// IsMethodHeader reports whether a name is, in any spelling of HeaderValues, that of a header from which some
// servers take the method.
func IsMethodHeader(name string) bool {
	switch strings.ToLower(strings.ReplaceAll(name, "_", "-")) {
	case "x-http-method-override", "x-http-method", "x-method-override":
		return true
	}
	return false
}

// HasMethod reports whether IsMethodHeader holds for one of the headers.
func HasMethod(h http.Header) bool {
	for name := range h {
		if len(name) > 12 && (name[0] == 'X' || name[0] == 'x') && IsMethodHeader(name) {
			return true
		}
	}
	return false
}

// IsPreflight reports whether a request is a CORS preflight, which never asks for another protocol or method.
func IsPreflight(method string, h http.Header) bool {
	return method == http.MethodOptions && len(h["Origin"]) > 0 && len(h["Upgrade"]) == 0 &&
		len(h["Access-Control-Request-Method"]) > 0 && !HasMethod(h)
}

// Reason is the reason for an outcome, as in logs.
type Reason string

// The reasons. The last two are for a request without a decision.
const (
	NoReason      Reason = ""               // the policy alone does not refuse the request
	UnknownKey    Reason = "unknown_key"    // the API key is not in the database
	KeyExpired    Reason = "key_expired"    // the API key has expired
	KeyRevoked    Reason = "key_revoked"    // the API key was revoked
	Banned        Reason = "banned"         // the network, the user or the key is banned
	Blocked       Reason = "blocked"        // a block rule matched
	NoQuota       Reason = "no_quota"       // a limit has the amount 0
	NoKey         Reason = "no_key"         // the request lacks the key or the header that a limit counts by
	AmbiguousPath Reason = "ambiguous_path" // the verdict depends on how a server reads the path
	Upgrade       Reason = "upgrade"        // another protocol, where a limit of tokens applies
	AmbiguousBody Reason = "ambiguous_body" // servers may differ in what the body asks of a language model
	NoPrice       Reason = "no_price"       // a limit in money applies, and the model has no price
	BatchAPI      Reason = "batch"          // the request is for a batch, whose answers cannot be seen
	BinaryStream  Reason = "binary_stream"  // the request is for a binary event stream, which cannot be read
	Background    Reason = "background"     // the body asks for an answer that the client would poll for
	SlowBody      Reason = "slow_body"      // the body did not arrive in time, or not at all
	LongBody      Reason = "long_body"      // the body is too long
	GoneBody      Reason = "gone_body"      // an earlier attempt to serve the request has read the body
	ManyBodies    Reason = "many_bodies"    // the proxy holds too many bodies
	Timeout       Reason = "timeout"        // the database took too long
	Unavailable   Reason = "unavailable"    // the database made no decision
)

// Outcome returns the outcome of a request that the policy refuses for a reason.
func (r Reason) Outcome() outcome.Kind {
	switch r {
	case Banned, Blocked:
		return outcome.Blocked
	case NoQuota:
		return outcome.Limited
	case ManyBodies:
		return outcome.Overloaded
	}
	return outcome.Rejected
}

// Terms says on whose limit a hit is, and what the response is if that limit refuses. It must not be changed.
type Terms struct {
	// Rule and Limit name a limit of the policy. Both are "" for a limit of a configuration.
	Rule, Limit string
	// Level is the user above the sender who has the limit, or "" for the sender.
	Level string
	// Repeated reports that an earlier hit, of the sender or another Level, is on the same limit. The
	// history counts once for each limit what a request is charged.
	Repeated bool
	// Shadow reports that the hit is counted and reported, and never refuses.
	Shadow bool
	// Overage reports that the hit never refuses: its ratelimit.Limit has more Events than requests can use.
	// The use beyond Quota is the overage.
	Overage bool
	// Quota is the amount of the limit for the sender.
	Quota int64
	// AmountSource is rule, or for the amount of an override tier, user or key.
	AmountSource string

	// Status, Message and RetryAfter describe the response if the limit refuses, see Rule. Status is 0 for an
	// exempt rule.
	Status     int
	Message    string
	RetryAfter time.Duration

	// CostSource is that of Rule.Settle, or describes the unit of a limit of tokens or money, or is nil. It
	// must not be changed.
	CostSource *option.CostSource

	// Hidden reports that no field of a response describes the limit.
	Hidden bool

	// Notify is RuleLimit.Notify. It must not be changed.
	Notify []int64

	// simple reports whether this hit meets the conditions of Verdict.Simple.
	simple bool
}

// Verdict is the decision of the policy on a request. The next Evaluate with the same Verdict reuses its
// memory.
type Verdict struct {
	// User, Tier and KeyID describe the sender, also of a request that is refused because its API key is
	// revoked or has expired. User is "" for an anonymous request, and KeyID is 0 without a key.
	User, Tier string
	KeyID      int64

	// Rule is the rule that refused or exempted the request, else the first enforced rule that charges it.
	Rule string

	// Endpoint is the text of the paths of the first matching rule that is enforced and has paths. "" means
	// none.
	Endpoint string

	// Reason is the reason for the refusal. Status, Message and RetryAfter describe the response: Message ""
	// means the proxy's own text, and RetryAfter 0 means none.
	Reason     Reason
	Status     int
	Message    string
	RetryAfter time.Duration

	// Refusing describes the rule or the limit that refused the request, else it is nil.
	Refusing *Terms

	// Ban is the ban that refused the request, else nil. It must not be changed.
	Ban *Ban

	// Identity is that of the sender, or nil, also if its API key is not valid. It must not be changed.
	Identity *Identity

	// Level is the user above the sender for whom a rule or a ban refuses the request, or "" for the sender.
	Level string

	// Exempt reports that no limit of the policy applies.
	Exempt bool

	// Hits are the hits to take, all or nothing. Terms[i] describes Hits[i]. HasIndependent reports that some
	// are of shadow rules, which are Independent.
	Hits           []ratelimit.Hit
	Terms          []*Terms
	HasIndependent bool

	// Simple reports that there are hits, and that each comes from an enforced rule with status 429, without
	// overage, Settle, InFlight, Hidden, Notify, Message and RetryAfter.
	Simple bool

	// ShadowTerms has terms of shadow rules that have no hit but would have had an effect: block and exempt
	// rules, and limits with the amount 0.
	ShadowTerms []*Terms

	// withoutSender skips rules that need the sender, and amounts by tier, because the sender was not looked
	// up or its key is refused.
	withoutSender bool

	// above is the user above the sender whose verdict this is, or "" for the sender.
	above string

	// trace describes the evaluation; nil except in Explain.
	trace *Trace

	// Memory that Evaluate reuses.
	rules    []*rule
	limits   []*limit // limits[i] belongs to Hits[i], until setAmounts compacts Hits
	families []string // the families of the enforced rules that charge
}

// Refused reports whether the policy alone refuses the request. Such a request has no hits.
func (v *Verdict) Refused() bool { return v.Reason != NoReason }

// Clear empties verdicts for the next requests. It drops all references to the requests and keeps the memory.
func Clear(all ...*Verdict) {
	for _, v := range all {
		for i := range v.Hits {
			v.Hits[i] = ratelimit.Hit{} // a key may be a part of a long request
		}
		*v = Verdict{
			Hits: v.Hits[:0], Terms: v.Terms[:0], ShadowTerms: v.ShadowTerms[:0],
			trace: v.trace, rules: v.rules, limits: v.limits[:0], families: v.families[:0],
		}
	}
}

// refuse drops the hits and sets the fields of a refusal.
func refuse(v *Verdict, reason Reason, t *Terms) {
	v.Hits = v.Hits[:0]
	v.Terms = v.Terms[:0]
	v.Rule = t.Rule
	v.Reason = reason
	v.Refusing = t
	v.Status = t.Status
	v.Message = t.Message
	v.RetryAfter = t.RetryAfter
}

// Refuse replaces a verdict by a refusal with AmbiguousPath, UnknownKey or NoKey.
func Refuse(v *Verdict, reason Reason) {
	t := &Terms{Status: 401}
	if reason == AmbiguousPath {
		t.Status = 400
	}
	refuse(v, reason, t)
	v.Refusing = nil
	v.Simple = false
	v.Exempt = false
}
