package history

import (
	"net/netip"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Record describes one request. A Writer adds it to the metrics and, depending on Audit, to the audit log.
type Record struct {
	Time    time.Time // the time of the decision
	Outcome outcome.Kind
	Reason  string // the reason for Outcome, such as banned; "" means none
	Model   string // the result of CleanText: the model that has no price, if that is the reason

	// Shadow means that a shadow rule would have had this Outcome. The request passes that rule, and has a
	// record of its own.
	Shadow bool

	// Prefix is the prefix of the limit that refused the request. If no limit refused it, Prefix is the
	// prefix of the limit with the least remaining quota. For a rule without limits, Prefix is
	// option.RulePrefix and the rule's name. "" means that no limit and no rule applied.
	Prefix string
	Key    string // the stored key of the counter, which is a digest if the key is secret

	User  string // "" for an anonymous request
	KeyID int64  // 0 for no API key
	Tier  string

	Address            netip.Addr // the zero Addr if it is unknown
	Host, Method, Path string     // Path without the query

	// Endpoint is the operator's name for the path: the route, or the path patterns of a rule or a zone.
	// Clients can choose Path, but not Endpoint. "" means none.
	Endpoint string

	// Hits has the charged hits of a request that passed. Add does not retain Hits. If Unsettled[i] is true,
	// a later Settle adds the actual cost of Hits[i]. A nil Unsettled means that all costs are final.
	Hits        []ratelimit.Hit
	CostPending []bool

	Unit             string        // of Cost, Quota and Remaining, see ratelimit.Limit
	Cost             int64         // in units, 0 or more; for a refused request, what it would have cost
	Quota, Remaining int64         // in units, for the limit of Prefix; Quota is 0 if no limit decided
	Status           int           // the HTTP status of a refusal; 0 if the request passed
	RetryAfter       time.Duration // of a refusal; 0 if unknown; may be ratelimit.Never
	Duration         time.Duration // the time that the decision took
	Source           ratelimit.Source

	// Also has two texts for each limit that decided on the request besides the limit of Prefix: its prefix
	// and its key.
	Also []string

	Audit option.Audit
}
