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
	// Rejected means that it was refused for its API key or its path.
	Rejected
	// Shadow means that a shadow rule would have refused it. Another record of the request says what
	// happened to it.
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

// Record describes one request. A Writer counts it in the metrics, and writes it to the audit log if Audit
// says so.
type Record struct {
	Time    time.Time // when it was decided
	Outcome OutcomeKind
	Reason  string // more about a refusal, such as banned; "" is none

	// Prefix is the prefix of a configured limit, or of a limit of a rule, or RulePrefix and the counter
	// of a rule that has none; "" is none. Of several limits, it is that of the limit that refused the
	// request, or of the one with the least remaining.
	Prefix string
	Key    string // of the counter, as it is stored: a digest if it is a secret

	User  string // "" is nobody
	KeyID int64  // 0 is none
	Tier  string

	Address            netip.Addr // the zero Addr is unknown
	Host, Method, Path string     // Path without the query

	// Endpoint is the operator's name for the path: the route, or the paths of a rule or a zone. It is never
	// a path that the client has chosen. "" is none.
	Endpoint string

	// Hits are those of a request that passed, which its limits have charged; Add does not keep them. Those
	// that are Unsettled cost what Settle says later. nil: none is.
	Hits      []ratelimit.Hit
	Unsettled []bool

	// of the request, in units, 0 or more; of a refused request, what it would have cost
	Cost             int64
	Quota, Remaining int64         // in units, of the limit of Prefix; Quota is 0 if no limit decided
	Status           int           // the HTTP status of a refusal; 0 if the request passed
	RetryAfter       time.Duration // of a refusal; 0 is unknown, ratelimit.Never is never
	Duration         time.Duration // how long the decision took
	Source           ratelimit.Source

	// Also lists the other limits that were asked about the request, whether or not they charged it:
	// prefix, key, prefix, key and so on.
	Also []string

	Audit settings.Audit
}
