package history

import (
	"net/netip"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// OutcomeKind says what happened to a request. It is the column outcome of the audit log.
type OutcomeKind uint8

const (
	// Allowed means that the request passed.
	Allowed OutcomeKind = iota
	// Limited means that a limit refused it.
	Limited
	// Blocked means that a ban or a block rule refused it.
	Blocked
	// Rejected means that it was refused because of its API key or its path.
	Rejected
	// Shadow means that a shadow rule would have refused it. Another record has the outcome of the request.
	Shadow
	// Failed means that no decision was possible. Record.Status says whether the request passed.
	Failed
)

// outcomeKinds holds the name of each OutcomeKind.
var outcomeKinds = []string{"allowed", "limited", "blocked", "rejected", "shadow", "error"}

// String returns the name used in the tables, such as "limited".
func (d OutcomeKind) String() string {
	if int(d) < len(outcomeKinds) {
		return outcomeKinds[d]
	}
	return "error"
}

// Record describes one request. A Writer adds it to the metrics, and depending on Audit to the audit log.
type Record struct {
	Time    time.Time // the time of the decision
	Outcome OutcomeKind
	Reason  string // the reason for a refusal, such as banned; "" means none

	// Prefix is the prefix of a configured limit or of a limit of a rule. For a rule without limits it is
	// RulePrefix and the counter of the rule, and "" for no limit. Of several limits, it belongs to the one
	// that refused the request, or else to the one with the least remaining.
	Prefix string
	Key    string // the stored key of the counter: a digest if it is a secret

	User  string // "" for an anonymous request
	KeyID int64  // 0 for no API key
	Tier  string

	Address            netip.Addr // the zero Addr if it is unknown
	Host, Method, Path string     // Path without the query

	// Endpoint is the operator's name for the path: the route, or the paths of a rule or a zone. It is never
	// a path that the client chooses. "" means none.
	Endpoint string

	// Hits are the charged hits of a request that passed. Add does not keep them. If Unsettled[i] is set,
	// Settle adds the cost of Hits[i] later. A nil Unsettled means that all costs are final.
	Hits      []ratelimit.Hit
	Unsettled []bool

	Cost             int64         // in units, 0 or more; of a refused request, what it would have cost
	Quota, Remaining int64         // in units, of the limit of Prefix; Quota is 0 if no limit decided
	Status           int           // the HTTP status of a refusal; 0 if the request passed
	RetryAfter       time.Duration // of a refusal; 0 if unknown; may be ratelimit.Never
	Duration         time.Duration // the time that the decision took
	Source           ratelimit.Source

	// Also has the other limits that were asked about the request, whether or not they charged it, as pairs
	// of prefix and key.
	Also []string

	Audit settings.Audit
}
