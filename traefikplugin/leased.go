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

// leasedHandler is the middleware for the frequent kind of limit with a lease: one limit with a fixed
// cost, and a frequent key that is not a secret. It does not change.
type leasedHandler struct {
	upstream *upstream
	queued   *handler // decides the requests for which the lease has too few units
	zone     *serve.Zone
	limit    *ratelimit.Limit
	row      lease.RowID // without the key
	quota    string      // of the limit
	cost     int64
	clock    *respond.Clock
	admitted *int64 // counts the requests that it lets pass; atomic

	// Of the store's lease.Set, and rows.
	rows    *lease.Set
	stripes []*lease.Stripe
	seed    maphash.Seed
	born    time.Time
}

// withLeases returns the handler of a middleware: a leasedHandler if the middleware is of its
// kind, else h. For another kind of middleware, the queue decides by leases. So it does with a
// history, because the queue records requests.
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

// ServeHTTP lets a request pass and sets its headers, if the lease of its row has its cost. Together with
// passLeased it does what lease.Take does, in few functions, because each call takes long in the interpreter,
// and so does each intermediate value of a function, even if it is not reached. Through the queue such a
// request takes 6 times the processor time (benchmark Interpreted/Postgres,_leased in integration, in turns).
// TestALeaseDecidesAsTheQueue runs both forms on the same requests.
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

// passLeased uses units of a lease for a request, and lets it pass. The caller has locked the stripe.
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
