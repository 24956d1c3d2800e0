package history

import (
	"net/netip"
	"strings"
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

	// Charged has the charged hits of a request that passed. Add does not retain it. If CostPending[i] is
	// true, SetCost adds the actual cost of Charged[i] later. A nil CostPending means that all costs are
	// final.
	Charged     []ratelimit.Hit
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

// The numbers of a row of the audit log, by their index. A number below 0 is NULL.
const (
	auditTime = iota // in microseconds since 1970
	auditCost
	auditCount
	auditQuota
	auditRemaining
	auditKeyID
	auditRetry
	auditDuration
	auditStatus
)

// The texts of a row of the audit log, by their index. "" is NULL.
const (
	auditOutcome = iota
	auditShadow  // "t" or "f"
	auditReason
	auditModel
	auditPrefix
	auditLimit
	auditKey
	auditUser
	auditTier
	auditAddress
	auditHost
	auditMethod
	auditPath
	auditAlso // as a literal of a text[]
	auditUnit
	auditWeight
)

var audit = newTable(&table{
	function: "rate_limit_record_audit", shared: []string{"region", "node"},
	numbers: []string{
		auditTime: "time", auditCost: "cost", auditCount: "count", auditQuota: "quota",
		auditRemaining: "remaining", auditKeyID: "key_id", auditRetry: "retry_after_ms",
		auditDuration: "duration_us", auditStatus: "status",
	},
	texts: []string{
		auditOutcome: "outcome", auditShadow: "shadow", auditReason: "reason", auditModel: "model",
		auditPrefix: "prefix",
		auditLimit:  "limit_name", auditKey: "key", auditUser: "user_id", auditTier: "tier",
		auditAddress: "address", auditHost: "host", auditMethod: "method", auditPath: "path",
		auditAlso: "also", auditUnit: "unit", auditWeight: "weight",
	},
})

// orNull returns n, or -1 for 0. The negative number becomes NULL in the table.
func orNull(n int64) int64 {
	if n == 0 {
		return -1
	}
	return n
}

// newAuditRow returns the row of the audit log for a record. It copies the texts, because a substring keeps
// its whole string in memory: a path without its query would still hold the query.
func newAuditRow(r *Record, micros int64, weight string, mode option.AddressMode) tableRow {
	n := []int64{
		auditTime: micros, auditCost: r.Cost, auditCount: 1, auditQuota: -1, auditRemaining: -1,
		auditKeyID: orNull(r.KeyID), auditStatus: orNull(int64(r.Status)), auditRetry: -1,
		auditDuration: r.Duration.Microseconds(),
	}
	if r.Quota != 0 {
		n[auditQuota] = r.Quota
		n[auditRemaining] = r.Remaining
	}
	if r.RetryAfter > 0 && r.RetryAfter != ratelimit.Never {
		n[auditRetry] = (r.RetryAfter + 999999).Milliseconds()
	}
	prefix, limit := SplitPrefix(r.Prefix)
	t := []string{
		auditOutcome: r.Outcome.String(), auditShadow: "f", auditReason: CleanText(r.Reason, maxText),
		auditModel: r.Model, auditPrefix: CleanText(prefix, maxText), auditLimit: CleanText(limit, maxText),
		auditKey: CleanText(maskKey(mode, r.Key, r.Address), maxKey), auditUser: CleanText(r.User, maxKey),
		auditTier: CleanText(r.Tier, maxText), auditAddress: maskAddress(mode, r.Address),
		auditHost: CleanText(r.Host, maxText), auditMethod: CleanText(r.Method, maxMethod),
		auditPath: cleanPath(r.Path), auditUnit: r.Unit, auditWeight: weight,
	}
	if r.Shadow {
		t[auditShadow] = "t"
	}
	if len(r.Also) > 0 {
		t[auditAlso] = alsoText(r, mode)
	}
	joined := strings.Join(t, "") // one allocation
	start := 0
	for i, text := range t {
		end := start + len(text)
		t[i] = joined[start:end]
		start = end
	}
	return tableRow{n, t, int64(start)}
}

// alsoText returns Record.Also as the literal of a text[].
func alsoText(r *Record, mode option.AddressMode) string {
	var elements []string
	for i := 0; i+1 < len(r.Also) && i < maxAlso; i += 2 {
		key := maskKey(mode, r.Also[i+1], r.Address)
		elements = append(elements, escapes.Replace(CleanText(r.Also[i], maxText)),
			escapes.Replace(CleanText(key, maxKey)))
	}
	if elements == nil {
		return ""
	}
	return `{"` + strings.Join(elements, `","`) + `"}`
}

// escapes escapes an element of the literal of an array.
var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// SplitPrefix splits a prefix "rule/NAME/LIMIT" into "rule/NAME" and "LIMIT", for the columns prefix and
// limit_name. A NAME contains no slash. For any other prefix, counter is the whole prefix and limit is "".
func SplitPrefix(prefix string) (counter, limit string) {
	if !strings.HasPrefix(prefix, option.RulePrefix) {
		return prefix, ""
	}
	i := strings.IndexByte(prefix[len(option.RulePrefix):], '/')
	if i < 0 {
		return prefix, ""
	}
	i += len(option.RulePrefix)
	return prefix[:i], prefix[i+1:]
}
