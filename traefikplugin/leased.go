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
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// leasedZone is the middleware of the most frequent configuration with a lease: one limit with a fixed cost
// and a key of FrequentKey that is not secret. It is immutable.
type leasedZone struct {
	queued   *handler // for requests that no lease decides
	key      *reading.Key
	header   string // the header that contains the key; if its value has a colon, leasedKey finds the key
	limit    *ratelimit.Limit
	durable  bool
	prefix   string   // of the row
	quota    []string // the value of X-RateLimit-Limit, in a slice that all responses share
	cost     int64
	admitted *int64 // counts the requests that a lease admits; atomic

	// From the lease.Set of the store, for fewer steps of the interpreter.
	credit  *int32
	stripes []*lease.Stripe
	seed    maphash.Seed
	born    time.Time
}

// leasedZoneOf returns the leasedZone of a handler, or nil if all requests need the queue. With a history,
// all requests need the queue, because its worker records them.
func leasedZoneOf(h *handler) *leasedZone {
	store := h.databases.Limits.Postgres
	set := h.limits
	if store == nil || set == nil || !set.Simple || set.Varies || h.site.History != nil ||
		len(set.Zones) != 1 {
		return nil
	}
	z := set.Zones[0]
	hit := set.Hits[0]
	if hit.Limit.Lease <= 0 || hit.Secret || !z.Key.Frequent {
		return nil
	}
	rows := store.Rows()
	row := lease.RowOf(hit.Limit, "")
	leased := &leasedZone{queued: h, key: z.Key, header: z.Key.Header, limit: hit.Limit,
		durable: row.Durable, prefix: row.Prefix, cost: hit.Cost,
		quota:    []string{strconv.FormatInt(hit.Limit.Capacity(), 10)},
		admitted: h.databases.Limits.Node.Leased(hit.Limit.Prefix),
		credit:   &rows.Credit, stripes: rows.Stripes, seed: rows.Seed, born: rows.Born}
	if z.Key.IPv4 < 32 {
		leased.header = "" // the key may be the network of an address
	}
	return leased
}

// ServeHTTP serves a request that a lease admits, as pass does, and gives the others to the queue. While
// leases decide few requests, it looks for none.
func (z *leasedZone) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	if atomic.LoadInt32(z.credit) <= 0 || !useLease(z, header, r) {
		z.queued.ServeHTTP(w, r)
		return
	}
	u := z.queued.upstream
	if atomic.LoadInt32(&u.wraps) != 0 {
		passWrapped(u, nil, w, r)
		return
	}
	left := header["X-Ratelimit-Remaining"][0]
	u.next.ServeHTTP(w, r)
	after := header["X-Ratelimit-Remaining"]
	if len(after) != 1 || after[0] != left || len(header["X-Ratelimit-Limit"]) != 1 ||
		len(header["X-Ratelimit-Reset"]) != 1 {
		rewrap(u)
	}
}

// useLease admits a request and sets the headers of the limit if the lease of its row has enough units.
// Otherwise it returns false, and the queue decides. useLease repeats the frequent case of lease.Use in
// one function, because the interpreter takes long for each call. An exact limit takes twice the processor
// time of Traefik and the database (go run . -only 'Traefik.*leased, 100 keys' in bench).
// TestLeaseDecidesLikeQueue compares useLease with the queue on the same requests.
//
// The interpreter allocates each variable and each intermediate value at the start of a function, even for
// branches that it does not take. So the rare cases are in other functions.
func useLease(z *leasedZone, header http.Header, r *http.Request) bool {
	key := ""
	// No header has the name "". A key with a colon may be an address, or look like a
	// digest, and a server trims spaces.
	if values := r.Header[z.header]; len(values) == 1 && !strings.ContainsAny(values[0], ": \t") &&
		!policy.OtherSpelling(r.Header, z.header) {
		key = values[0]
	} else {
		key = leasedKey(z, r)
	}
	s := z.stripes[maphash.String(z.seed, key)%lease.StripeCount]
	s.Mu.Lock()
	row := s.Rows[lease.RowID{Durable: z.durable, Prefix: z.prefix, Key: key}]
	cost := z.cost
	if row == nil || row.Limit != z.limit || row.Units < cost || time.Since(z.born) >= row.Ends {
		return missLease(z, s)
	}
	row.Units -= cost
	row.Used += cost
	header["X-Ratelimit-Limit"] = z.quota
	header["X-Ratelimit-Remaining"] = []string{strconv.FormatInt(row.Rest+row.Units, 10)}
	header["X-Ratelimit-Reset"] = row.ResetText
	s.Mu.Unlock()
	atomic.AddInt64(z.admitted, 1)
	return true
}

// leasedKey returns the key of a request, or a text that is the key of no row. A key that looks like a digest
// would be the key of another client's row.
func leasedKey(z *leasedZone, r *http.Request) string {
	key := reading.FrequentKey(z.key, r)
	if key == "" || strings.HasPrefix(key, batch.DigestPrefix) {
		return batch.DigestPrefix
	}
	return key
}

// missLease uses one unit of credit for a request that no lease decides. It unlocks the stripe and returns
// false.
func missLease(z *leasedZone, s *lease.Stripe) bool {
	s.Mu.Unlock()
	atomic.AddInt32(z.credit, -1)
	return false
}
