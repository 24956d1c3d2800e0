package history

import (
	"net/netip"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// OutcomeKind is what happened to a request. It is the column decision of the tables.
type OutcomeKind uint8

const (
	// Allowed says that the request passed.
	Allowed OutcomeKind = iota
	// Limited says that a limit refused it.
	Limited
	// Blocked says that a ban or a block rule refused it.
	Blocked
	// Rejected says that it was refused for its API key or its path.
	Rejected
	// Shadow says that a shadow rule would have refused it. The request has another record, which says
	// what happened to it.
	Shadow
	// Failed says that no decision was possible. Status says whether the request passed.
	Failed
)

// outcomeKinds are the names, by OutcomeKind.
var outcomeKinds = []string{"allowed", "limited", "blocked", "rejected", "shadow", "error"}

// String returns the name as it is in the tables, such as "limited".
func (d OutcomeKind) String() string {
	if int(d) < len(outcomeKinds) {
		return outcomeKinds[d]
	}
	return "error"
}

// Record is what happened to one request. It is in the metrics, in the usage of its user, and
// in the audit log if Audit says so.
type Record struct {
	Time    time.Time // when it was decided
	Outcome OutcomeKind
	Reason  string // more about a refusal, such as banned; "" is none

	// Prefix is the prefix of a limit in a configuration, or "rule/" and the counter of a rule; ""
	// is none. Limit is the name of the rule's limit. Of several limits they are the one that
	// refused, or that with the least remaining.
	Prefix, Limit string
	Key           string // of the counter, as it is stored: a digest if it is a secret

	User  string // "" is nobody
	KeyID int64  // 0 is none
	Tier  string

	Address            netip.Addr // the zero Addr is unknown
	Host, Method, Path string     // Path without the query
	Route              string     // a name that the operator gives; "" is none

	Cost             int64         // of the request, in units, 0 or more; of a refused request, what it would have cost
	Quota, Remaining int64         // in units, of the limit of Prefix; Quota is 0 if no limit decided
	Status           int           // the HTTP status of a refusal; 0 if the request passed
	RetryAfter       time.Duration // of a refusal; 0 is unknown, ratelimit.Never is never
	Duration         time.Duration // how long the decision took
	Source           ratelimit.Source

	// Also are the other limits that were asked about the request, whether they charged it or
	// not: prefix, key, prefix, key and so on.
	Also []string

	Audit Audit
}

// Audit says which requests of a limit are in the audit log.
type Audit struct {
	Level Level
	Share float64 // of Sample: from above 0 to 1
}

// Level is how much is in the audit log.
type Level uint8

const (
	// AuditOff is nothing.
	AuditOff Level = iota
	// AuditDenied is all that was refused, or would have been refused by a shadow rule, and all
	// without a decision.
	AuditDenied
	// AuditSample is what AuditDenied has, and a random share of the requests that passed.
	AuditSample
	// AuditAll is everything.
	AuditAll
)
