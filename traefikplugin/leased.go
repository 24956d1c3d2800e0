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

// leasedZone finds the leases for the most frequent configuration with a lease: one limit with a fixed cost
// and a key of FrequentKey that is not secret. It is immutable.
type leasedZone struct {
	upstream *upstream
	key      *reading.Key
	header   string // the header that contains the key; if its value has a colon, leasedKey finds the key
	limit    *ratelimit.Limit
	row      lease.RowID // a template without the key
	quota    []string    // the value of X-RateLimit-Limit, in a slice that all responses share
	cost     int64
	admitted *int64     // counts the requests that a lease admits; atomic
	rows     *lease.Set // the store's leases
	credit   *int32     // a copy of &rows.Credit, which the interpreter reads faster
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
	rows := store.Leases()
	leased := &leasedZone{upstream: h.upstream, key: z.Key, header: z.Key.Header, limit: hit.Limit,
		row: lease.RowOf(hit.Limit, ""), quota: []string{strconv.FormatInt(hit.Limit.Capacity(), 10)},
		cost: hit.Cost, admitted: h.databases.Limits.Node.Leased(hit.Limit.Prefix), rows: rows,
		credit: &rows.Credit}
	if z.Key.IPv4 < 32 {
		leased.header = "" // the key may be the network of an address
	}
	return leased
}

// passLeased serves a request with the headers of the limit if the lease of its row has enough units.
// Otherwise it returns false, and the queue decides. passLeased repeats the frequent case of lease.Use in
// one function, because the interpreter takes long for each call. An exact limit takes twice the processor
// time of Traefik and the database (go run . -only 'Traefik.*leased, 100 keys' in bench).
// TestLeaseDecidesLikeQueue compares passLeased with the queue on the same requests.
//
// The interpreter allocates each variable and each intermediate value at the start of a function, even for
// branches that it does not take. So the rare cases are in other functions.
func passLeased(z *leasedZone, w http.ResponseWriter, r *http.Request) bool {
	id := z.row
	// No header has the name "". A key with a colon may be an address, or look like a
	// digest, and a server trims spaces.
	if values := r.Header[z.header]; len(values) == 1 && !strings.ContainsAny(values[0], ": \t") &&
		!policy.OtherSpelling(r.Header, z.header) {
		id.Key = values[0]
	} else {
		id.Key = leasedKey(z, r)
	}
	header := w.Header()
	rows := z.rows
	s := rows.Stripes[maphash.String(rows.Seed, id.Key)%lease.StripeCount]
	s.Mu.Lock()
	row := s.Rows[id]
	cost := z.cost
	if row == nil || row.Limit != z.limit || row.Units < cost || time.Since(rows.Born) >= row.Ends {
		return missLease(z, s)
	}
	row.Units -= cost
	row.Used += cost
	left := row.Rest + row.Units
	reset := row.ResetText
	s.Mu.Unlock()
	header["X-Ratelimit-Limit"] = z.quota
	header["X-Ratelimit-Remaining"] = []string{strconv.FormatInt(left, 10)}
	header["X-Ratelimit-Reset"] = reset
	atomic.AddInt64(z.admitted, 1)
	pass(z.upstream, header, w, r)
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
