package serve

import (
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// RecordOf returns what a record has of a request that was delivered, without its details. user is that of
// the proxy's authentication.
func RecordOf(q *Request, audit settings.Audit, user string) history.Record {
	var r history.Record
	q.Site = &Site{Recording: func(*http.Request) string { return user }}
	q.Limits = &LimitSet{Audit: audit}
	q.Asked = true
	setCounts(&r, q, time.Time{})
	setKeys(&r, q)
	r.Hits = nil
	r.Duration = 0
	return r
}
