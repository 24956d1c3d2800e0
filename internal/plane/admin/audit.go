package admin

import (
	"context"
	"net/netip"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

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
	// Since is a Horizon: only rows of transactions from it on are found, and maybe others.
	Since int64
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

// auditSQL are the rows that an AuditQuery finds. Its parameters are those of parameters.
const auditSQL = ` FROM rate_limit_audited WHERE time >= $1::timestamptz AND time < $2::timestamptz
	AND ($3::text IN ('', prefix, prefix || '/' || limit_name) OR $3 = 'rule/' AND starts_with(prefix, $3))
	AND ($4::text = '' AND $5::text[] IS NULL OR user_id = $4 OR $5 IS NOT NULL AND key = ANY ($5)) AND ($6::bigint = 0 OR key_id = $6)
	AND ($7::text[] IS NULL OR decision = ANY ($7)) AND ($8::text IS NULL OR address && $8::inet)
	AND ($9::text = '' OR host = $9) AND ($10::text = '' OR node = $10) AND ($11::bigint = 0 OR ` + newRowsSQL + `)`

func (q *AuditQuery) parameters(more ...any) []any {
	var keys, address any
	if q.Key != "" {
		keys = storedKeys(q.Key)
	}
	if q.Address.IsValid() {
		address = q.Address.String()
	}
	return append([]any{q.From, q.Until, q.Prefix, q.User, keys, q.KeyID, q.Decisions, address, q.Host, q.Node, q.Since}, more...)
}

// Audit returns rows of the audit log, the newest first: the columns of rate_limit_audited, where limit is limit_name, and user
// is user_id. NULL is what does not apply to the request.
func (d *Database) Audit(ctx context.Context, q *AuditQuery) ([]Row, error) {
	return d.Ask(ctx, `SELECT time, decision, reason, prefix, limit_name AS "limit", key, user_id AS "user", key_id, tier,
	abbrev(address) AS address, host, method, path, node, region, status, cost, count, weight, quota, remaining, retry_after, duration,
	also, id`+auditSQL+" ORDER BY time DESC LIMIT $12::bigint", q.parameters(int64(q.Most))...)
}

// topColumns are the columns of what TopSince lists.
var topColumns = map[string]string{
	"senders": `prefix, name AS key, user_id AS "user", requests, refused, last`,
	"paths":   "name, requests, refused, failed",
}

// TopSince returns who has sent the most requests in a period, by the audit log, at most so many. by is senders or paths, as
// rate_limit_top has them. prefix is as in AuditQuery; "" is all.
func (d *Database) TopSince(ctx context.Context, by string, p Period, prefix string, most int) ([]Row, error) {
	return d.Ask(ctx, "SELECT "+topColumns[by]+` FROM rate_limit_top($1, $2, ARRAY[$3::text], $4) t
ORDER BY t.requests DESC, t.refused DESC, t.last DESC, t.prefix, t.name, t.user_id LIMIT $5::bigint`, p.From, p.Until, by, prefix, int64(most))
}
