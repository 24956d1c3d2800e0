package admin

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// Audited is a row of the audit log. A field that does not apply to the request is nil.
type Audited struct {
	Time     time.Time `json:"time"`
	Decision string    `json:"decision"`
	// Reason says more about a refusal.
	Reason *string `json:"reason"`
	// Prefix is that of a limit in a configuration, or rule/ and the name of a rule, and ""
	// if no limit applied. Limit is the name of the rule's limit.
	Prefix string  `json:"prefix"`
	Limit  *string `json:"limit"`
	Key    *string `json:"key"`
	User   *string `json:"user"`
	KeyID  *int64  `json:"key_id"`
	Tier   *string `json:"tier"`
	// Address is the address of the client, or its network.
	Address *string `json:"address"`
	Host    *string `json:"host"`
	Method  *string `json:"method"`
	Path    *string `json:"path"`
	Node    string  `json:"node"`
	Region  *string `json:"region"`
	Status  *int32  `json:"status"`
	Cost    int64   `json:"cost"`
	// Count is how many equal refusals of one second the row stands for, and Weight how many
	// requests each of them stands for.
	Count     int64   `json:"count"`
	Weight    float64 `json:"weight"`
	Quota     *int64  `json:"quota"`
	Remaining *int64  `json:"remaining"`
	// RetryAfter and Duration are in seconds.
	RetryAfter *float64 `json:"retry_after"`
	Duration   float64  `json:"duration"`
	// Also are the other limits that were asked: prefix, key, prefix, key and so on.
	Also []string `json:"also"`
	// ID is a number that no other row has.
	ID *int64 `json:"id"`
}

// AuditQuery says which rows of the audit log are wanted. Its zero fields restrict nothing.
type AuditQuery struct {
	Period
	User  string
	KeyID int64
	// Prefix is that of a limit in a configuration. For a rule it is rule/ and the name, and
	// may have a slash and the name of a limit; rule/ without a name is all rules.
	Prefix    string
	Decisions []string
	// Address finds the rows whose address is in this network, or whose network overlaps it.
	Address    netip.Prefix
	Host, Node string
	// Key finds also the rows of a counter with this key, as it is given or as it is stored. With a User, one of
	// the two is enough.
	Key string
	// Most is how many rows are returned at most. It must be above 0.
	Most int
}

// Decisions are the names of the decisions in the audit log.
func Decisions() []string {
	var names []string
	for d := history.Allowed; d <= history.Failed; d++ {
		names = append(names, d.String())
	}
	return names
}

// where collects conditions and their parameters.
type where struct {
	sql  []string
	args []any
}

// add adds a condition, with %d for the number of its parameter.
func (w *where) add(condition string, arg any) {
	w.args = append(w.args, arg)
	w.sql = append(w.sql, fmt.Sprintf(condition, len(w.args)))
}

// text adds a condition about a text, unless the text is empty.
func (w *where) text(condition, text string) {
	if text != "" {
		w.add(condition, text)
	}
}

// period adds a period. Its ends are parameters, so that the server looks only at the partitions
// of these days.
func (w *where) period(p Period) {
	w.add("time >= $%d::timestamptz", p.From)
	w.add("time < $%d::timestamptz", p.Until)
}

// prefix adds a prefix, as in AuditQuery.Prefix.
func (w *where) prefix(prefix string) {
	name, isRule := strings.CutPrefix(prefix, rulePrefix)
	if rule, limit, found := strings.Cut(name, "/"); isRule && found {
		w.add("prefix = $%d::text", rulePrefix+rule)
		w.text("limit_name = $%d::text", limit)
	} else if isRule && name == "" {
		w.add("starts_with(prefix, $%d::text)", prefix)
	} else {
		w.text("prefix = $%d::text", prefix)
	}
}

func (w *where) String() string { return strings.Join(w.sql, " AND ") }

// Audit returns rows of the audit log, the newest first.
func (d *Database) Audit(ctx context.Context, q *AuditQuery) ([]Audited, error) {
	names, err := d.renamedRules(ctx)
	if err != nil {
		return nil, err
	}
	w := q.where(names)
	found, err := rows[Audited](ctx, d, w.auditSQL("", q.Most), w.args...)
	names.show(found)
	return found, err
}

// where are the conditions of a query.
func (q *AuditQuery) where(names renamed) *where {
	w := &where{}
	w.period(q.Period)
	w.prefix(names.stored(q.Prefix))
	if q.Key == "" {
		w.text("user_id = $%d::text", q.User)
	} else {
		w.args = append(w.args, q.User)
		w.add(fmt.Sprintf("(user_id = $%d::text OR key = ANY ($%%d::text[]))", len(w.args)), storedKeys(q.Key))
	}
	w.text("host = $%d::text", q.Host)
	w.text("node = $%d::text", q.Node)
	if q.KeyID != 0 {
		w.add("key_id = $%d::bigint", q.KeyID)
	}
	if len(q.Decisions) > 0 {
		w.add("decision = ANY ($%d::text[])", q.Decisions)
	}
	if q.Address.IsValid() {
		w.add("address && $%d::text::inet", q.Address.String())
	}
	return w
}

// auditSQL is the query of the newest rows of the audit log, at most so many, with further columns.
func (w *where) auditSQL(further string, most int) string {
	w.args = append(w.args, int64(most))
	return fmt.Sprintf(`SELECT time, decision, reason, prefix, limit_name, key, user_id, key_id, tier,
	abbrev(address), host, method, path, node, region, status, cost, count, weight, quota, remaining, retry_after_ms / 1000.0::float8, duration_us / 1000000.0::float8, also, id%s
FROM rate_limit_audit WHERE %s ORDER BY time DESC LIMIT $%d::bigint`, further, w, len(w.args))
}

// Sender is a counter and a user, and what they did in a period.
type Sender struct {
	// Prefix is that of a limit in a configuration, or rule/ and the name of a rule, and ""
	// if no limit applied.
	Prefix string `json:"prefix"`
	// Key is that of the counter. Of requests without a counter, it is the address of the
	// client. It is nil if neither is known.
	Key *string `json:"key"`
	// User is nil for nobody.
	User *string `json:"user"`
	// Requests are all requests, and Refused those of them that were refused. A sample is
	// counted as what it stands for.
	Requests int64     `json:"requests"`
	Refused  int64     `json:"refused"`
	Last     time.Time `json:"last"`
}

// refusedSQL is the condition for a row of refused requests in the audit log. Requests without a
// decision are not among them.
const refusedSQL = "decision IN ('limited', 'blocked', 'rejected')"

// TopSince returns the senders with the most requests in a period, by the audit log, at most so
// many. prefix is as in AuditQuery; "" is all.
func (d *Database) TopSince(ctx context.Context, p Period, prefix string, most int) ([]Sender, error) {
	names, err := d.renamedRules(ctx)
	if err != nil {
		return nil, err
	}
	var w where
	w.period(p)
	w.prefix(names.stored(prefix))
	w.args = append(w.args, int64(most))
	// A row of decision shadow stands beside the row of its request.
	found, err := rows[Sender](ctx, d, fmt.Sprintf(`SELECT prefix, coalesce(key, host(address)), user_id, round(sum(count * weight))::bigint,
	round(coalesce(sum(count * weight) FILTER (WHERE `+refusedSQL+`), 0))::bigint, max(time)
FROM rate_limit_audit WHERE %s AND decision <> 'shadow' GROUP BY 1, 2, 3
ORDER BY 4 DESC, 5 DESC, 6 DESC, 1, 2, 3 LIMIT $%d::bigint`, &w, len(w.args)), w.args...)
	for i := range found {
		found[i].Prefix = names.shown(found[i].Prefix)
	}
	return found, err
}
