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

// leasedZone finds the leases for the most frequent configuration with a lease: one limit with a fixed cost
// and a key of FrequentKey that is not secret. It is immutable.
type leasedZone struct {
	zone     *serve.Zone
	limit    *ratelimit.Limit
	row      lease.RowID // a template without the key
	quota    string      // the value of X-RateLimit-Limit
	cost     int64
	clock    *respond.Clock
	admitted *int64 // counts the requests that a lease admits; atomic

	rows *lease.Set // the store's leases

	// Copies of fields of rows, because the interpreter reads them faster here.
	credit  *int32
	stripes []*lease.Stripe
	seed    maphash.Seed
	born    time.Time
}

// leasedZoneOf returns the leasedZone of a handler, or nil if all requests need the queue. With a history,
// all requests need the queue, because its worker records them.
func leasedZoneOf(h *handler) *leasedZone {
	store := h.handle.Limits.Postgres
	set := h.plain
	if store == nil || set == nil || !set.Simple || set.Varies || h.site.History != nil ||
		len(set.Zones) != 1 {
		return nil
	}
	z := set.Zones[0]
	hit := set.Hits[0]
	if hit.Limit.Lease <= 0 || hit.Secret || !z.Frequent {
		return nil
	}
	rows := store.Leases()
	return &leasedZone{zone: z, limit: hit.Limit, quota: strconv.FormatInt(hit.Limit.Capacity(), 10),
		cost: hit.Cost, row: lease.RowID{Durable: hit.Limit.Durable, Prefix: hit.Limit.Prefix},
		clock: h.site.Clock, admitted: &h.handle.Limits.Report.Of(hit.Limit.Prefix).Leased, rows: rows,
		credit: &rows.Credit, stripes: rows.Stripes, seed: rows.Seed, born: rows.Born}
}

// passLeased serves a request with the headers of the limit if the lease of its row has enough units.
// Otherwise it returns false, and the queue decides. passLeased repeats lease.Take in one function, because
// the interpreter takes long for each call. Through the queue, such a request takes 6 times the processor
// time (benchmark Interpreted/Postgres,_leased in integration, in turns). TestLeaseDecidesLikeQueue compares
// passLeased with the queue on the same requests.
func passLeased(z *leasedZone, to *upstream, w http.ResponseWriter, r *http.Request) bool {
	row := z.row
	row.Key = serve.FrequentKey(z.zone, r)
	s := z.stripes[maphash.String(z.seed, row.Key)%lease.StripeCount]
	s.Mu.Lock()
	l := s.Rows[row]
	if l == nil || l.Limit != z.limit || row.Key == "" || strings.HasPrefix(row.Key, batch.DigestPrefix) ||
		l.N < z.cost+l.Floor && !lease.Renew(z.rows, l, z.cost) || time.Since(z.born) >= l.Ends {
		s.Mu.Unlock()
		atomic.AddInt32(z.credit, -1)
		return false
	}
	l.N -= z.cost
	l.Used += z.cost
	s.Decided++
	reset := l.ResetText
	if ahead := atomic.LoadInt64(&z.clock.Latest); ahead != 0 {
		reset = strconv.FormatInt(l.Reset.Add(time.Second-1).Unix()-ahead, 10)
	}
	values := []string{z.quota, strconv.FormatInt(l.Rest+l.N, 10), reset}
	s.Mu.Unlock()
	atomic.AddInt64(z.admitted, 1)
	headers := w.Header()
	headers["X-Ratelimit-Limit"] = values[0:1:1]
	headers["X-Ratelimit-Remaining"] = values[1:2:2]
	headers["X-Ratelimit-Reset"] = values[2:3:3]
	pass(to, w, r)
	return true
}
