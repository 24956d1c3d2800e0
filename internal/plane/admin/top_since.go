package admin

import (
	"context"
	"fmt"
	"time"
)

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
	var w where
	w.period(p)
	w.prefix(prefix)
	w.args = append(w.args, int64(most))
	// A row of decision shadow stands beside the row of its request.
	return rows[Sender](ctx, d, fmt.Sprintf(`SELECT prefix, coalesce(key, host(address)), user_id, round(sum(count * weight))::bigint,
	round(coalesce(sum(count * weight) FILTER (WHERE `+refusedSQL+`), 0))::bigint, max(time)
FROM rate_limit_audit WHERE %s AND decision <> 'shadow' GROUP BY 1, 2, 3
ORDER BY 4 DESC, 5 DESC, 6 DESC, 1, 2, 3 LIMIT $%d::bigint`, &w, len(w.args)), w.args...)
}
