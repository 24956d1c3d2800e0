package traefikplugin

import (
	"hash/maphash"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// leasedHandler is the middleware for the most frequent configuration with a lease: one limit with a fixed
// cost, and a key of FrequentKey that is not secret. It is immutable.
type leasedHandler struct {
	upstream *upstream
	queued   *handler // decides the requests for which the lease has too few units
	zone     *serve.Zone
	limit    *ratelimit.Limit
	row      lease.RowID // a template without the key
	quota    string      // X-RateLimit-Limit
	cost     int64
	clock    *respond.Clock
	admitted *int64 // counts the requests that a lease admits; atomic

	// The leases of the store, and fields of rows that the interpreter reads faster here.
	rows    *lease.Set
	stripes []*lease.Stripe
	seed    maphash.Seed
	born    time.Time
}

// withLeases returns a leasedHandler for configurations that it can serve, else h. All others, and all with a
// history, go through the queue, which uses leases too and records requests.
func withLeases(h *handler) http.Handler {
	store := h.use.Limits.Postgres
	f := h.plain
	if store == nil || f == nil || !f.Simple || f.Varies || h.site.History != nil || len(f.Zones) != 1 {
		return h
	}
	z := f.Zones[0]
	hit := f.Hits[0]
	if hit.Limit.Lease <= 0 || hit.Secret || !z.Frequent() {
		return h
	}
	rows := store.Leases()
	return &leasedHandler{upstream: h.upstream, queued: h, zone: z,
		limit: hit.Limit, quota: strconv.FormatInt(hit.Limit.Capacity(), 10), cost: hit.Cost,
		row: lease.RowID{Durable: hit.Limit.Durable, Prefix: hit.Limit.Prefix}, clock: h.site.Clock,
		admitted: &h.use.Limits.Report.Of(hit.Limit.Prefix).Leased,
		rows:     rows, stripes: rows.Stripes, seed: rows.Seed, born: rows.Born}
}

// ServeHTTP passes a request on with the headers of the limit if the lease of its row has enough units.
// Otherwise the queue decides. Together with passLeased it repeats lease.Take in few functions, because the
// interpreter takes long for each call, and for each intermediate value of a function even if it is not
// reached. Through the queue such a request takes 6 times the processor time (benchmark
// Interpreted/Postgres,_leased in integration, in turns). TestALeaseDecidesAsTheQueue compares both on the
// same requests.
func (h *leasedHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	row := h.row
	row.Key = serve.FrequentKey(h.zone, r)
	s := h.stripes[maphash.String(h.seed, row.Key)%lease.StripeCount]
	s.Mu.Lock()
	l := s.Rows[row]
	if l != nil && l.Limit == h.limit && row.Key != "" && !strings.HasPrefix(row.Key, batch.DigestPrefix) &&
		(l.N >= h.cost+l.Floor || lease.Renew(h.rows, l, h.cost)) && time.Since(h.born) < l.Ends {
		passLeased(h, s, l, w, r)
		return
	}
	s.Mu.Unlock()
	h.queued.ServeHTTP(w, r)
}

// passLeased takes the cost of a request from its lease, and passes the request on. The caller has locked the
// stripe, and passLeased unlocks it.
func passLeased(h *leasedHandler, s *lease.Stripe, l *lease.Row, w http.ResponseWriter, r *http.Request) {
	l.N -= h.cost
	reset := l.ResetText
	if ahead := atomic.LoadInt64(&h.clock.Latest); ahead != 0 {
		reset = strconv.FormatInt(l.Reset.Add(time.Second-1).Unix()-ahead, 10)
	}
	values := []string{h.quota, strconv.FormatInt(l.Rest+l.N, 10), reset}
	s.Mu.Unlock()
	atomic.AddInt64(h.admitted, 1)
	headers := w.Header()
	headers["X-Ratelimit-Limit"] = values[0:1:1]
	headers["X-Ratelimit-Remaining"] = values[1:2:2]
	headers["X-Ratelimit-Reset"] = values[2:3:3]
	pass(h.upstream, w, r)
}
