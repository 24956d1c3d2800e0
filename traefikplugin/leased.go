package traefikplugin

import (
	"hash/maphash"
	"net"
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
// cost, and a key of one part that is not a secret. It does not change.
type leasedHandler struct {
	upstream *upstream
	next     http.Handler // of upstream
	wraps    *int32       // of upstream
	queued   *handler     // decides the requests for which the lease has too few units
	limit    *ratelimit.Limit
	row      lease.RowID // without the key, unless it is fixed
	quota    string      // of the limit
	cost     int64
	clock    *respond.Clock
	admitted *int64 // counts the requests that it lets pass; atomic

	// Of the store's lease.Set, and rows.
	rows    *lease.Set
	stripes []*lease.Stripe
	seed    maphash.Seed
	born    time.Time

	from source // where the key comes from
	text string // the name of the header
	ipv4 int
	ipv6 int
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
	if hit.Limit.Lease <= 0 || hit.Secret || !z.Plain() || len(z.Key.(*template).pieces) != 1 {
		return h
	}
	key := z.Key.(*template).pieces[0]
	if key.from != fromRemoteIP && key.from != fromText && key.from != fromHeader {
		return h
	}
	rows := store.Leases()
	l := &leasedHandler{upstream: h.upstream, next: h.upstream.next, wraps: &h.upstream.wraps, queued: h,
		limit: hit.Limit, quota: strconv.FormatInt(hit.Limit.Capacity(), 10), cost: hit.Cost,
		row: lease.RowID{Durable: hit.Limit.Durable, Prefix: hit.Limit.Prefix}, clock: h.site.Clock,
		admitted: &h.use.Limits.Report.Of(hit.Limit.Prefix).Leased,
		rows:     rows, stripes: rows.Stripes, seed: rows.Seed, born: rows.Born,
		from: key.from, text: key.text, ipv4: z.IPv4, ipv6: z.IPv6}
	if key.from == fromText {
		l.row.Key = (&ratelimit.Hit{Key: key.text}).StoredKey()
	}
	return l
}

// ServeHTTP lets a request pass and sets its headers, if the lease of its row has its cost. It is what
// lease.Take does, in one function, because each call takes long in the interpreter, and so does each
// intermediate value of a function, even if it is not reached. Through the queue such a request takes 6 times
// the processor time (benchmark Interpreted/Postgres,_leased in integration, in turns).
// TestALeaseDecidesAsTheQueue runs both forms on the same requests.
func (h *leasedHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	row := h.row
	switch h.from {
	case fromRemoteIP:
		row.Key = leasedAddress(h, r.RemoteAddr)
	case fromHeader:
		row.Key = leasedHeader(h, r.Header[h.text])
	}
	s := h.stripes[maphash.String(h.seed, row.Key)%lease.StripeCount]
	s.Mu.Lock()
	l := s.Rows[row]
	if l == nil || l.Limit != h.limit || l.N < h.cost+l.Floor && !lease.Renew(h.rows, l, h.cost) ||
		time.Since(h.born) >= l.Ends {
		s.Mu.Unlock()
		h.queued.ServeHTTP(w, r)
		return
	}
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
	if atomic.LoadInt32(h.wraps) != 0 {
		passWrapped(h.upstream, w, r)
		return
	}
	h.next.ServeHTTP(w, r)
	after := headers["X-Ratelimit-Remaining"] // as pass does
	if len(after) != 1 || after[0] != values[1] || len(headers["X-Ratelimit-Limit"]) != 1 ||
		len(headers["X-Ratelimit-Reset"]) != 1 {
		atomic.StoreInt32(h.wraps, mostWraps)
	}
}

// noKey is the key of no row.
const noKey = batch.DigestPrefix

// leasedAddress returns the key of a request as it is in the tables, if it is the address of the
// connection, or noKey if the queue has to make it.
func leasedAddress(h *leasedHandler, address string) string {
	key, _, err := net.SplitHostPort(address)
	if err != nil || h.ipv4 < 32 || address[0] == '[' { // see serve.MaybeAddress
		return leasedNetwork(h, key)
	}
	return key
}

// leasedHeader is leasedAddress for a key that is the value of a header.
func leasedHeader(h *leasedHandler, values []string) string {
	if len(values) != 1 {
		return noKey
	}
	if h.ipv4 < 32 || strings.IndexByte(values[0], ':') >= 0 {
		return leasedNetwork(h, values[0])
	}
	return values[0]
}

// leasedNetwork returns a key that may be an IPv6 address, or of which only the network counts.
func leasedNetwork(h *leasedHandler, key string) string {
	key = serve.Network(key, h.ipv4, h.ipv6)
	if key == "" || strings.HasPrefix(key, batch.DigestPrefix) {
		return noKey // the queue has another text for it
	}
	return key
}
