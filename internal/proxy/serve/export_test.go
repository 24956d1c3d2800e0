package serve

import (
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
)

// RecordOf returns the history record of a delivered request without its hits and its duration. If q.Err is
// set, the store failed with that error, and RecordOf first delivers the request. user is the user that the
// proxy authenticated.
func RecordOf(q *Request, audit option.Audit, user string) history.Record {
	var r history.Record
	q.Site = &Site{UserOf: func(*http.Request) string { return user }, Node: &registry.Node{}}
	q.HTTP = &http.Request{}
	q.Limits = &LimitSet{Audit: audit}
	q.HasVerdict = true
	if q.Err != nil {
		q.usesStore = true
		finishInFull(time.Time{}, 0, q)
	}
	setCounts(&r, q, time.Time{})
	setKeys(&r, q)
	r.Charged = nil
	r.Duration = 0
	return r
}

func NewSettling(q *Request) *Settling {
	newSettlings([]*Request{q})
	return q.Settling
}
