package edge

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// slowStore is a store for tests. Its Take waits for goOn, and then fails.
type slowStore struct {
	goOn chan struct{}

	mu      sync.Mutex
	under   int // calls of Take under way
	most    int // of them at once
	largest int // hits of a Take
	charged int64
}

func (s *slowStore) Take(_ context.Context, _ time.Duration, hits []ratelimit.Hit, _ []ratelimit.Decision) error {
	s.mu.Lock()
	s.under++
	s.most = max(s.most, s.under)
	s.largest = max(s.largest, len(hits))
	for i := range hits {
		s.charged += hits[i].Cost
	}
	s.mu.Unlock()
	<-s.goOn
	s.mu.Lock()
	s.under--
	s.mu.Unlock()
	return errors.New("down")
}

func (s *slowStore) Reset(context.Context, time.Duration, []ratelimit.Hit) error { return nil }
func (s *slowStore) Close()                                                      {}

// A flood of refusals of many senders takes bounded memory and one statement at a time.
func TestAFloodOfRefusalsIsBounded(t *testing.T) {
	store := &slowStore{goOn: make(chan struct{})}
	failures := 0
	p := &ProxyPolicy{bans: newBans(store, nil, nil, "test", func(error) { failures++ })}
	site := &Site{Policy: &SitePolicy{Live: p}}
	q := &Request{Set: &Set{Bans: []*policy.BanAfter{{Refusals: 10, Within: time.Minute, For: time.Hour}}}}
	q.Hits, q.Decisions = []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: "zone"}}}, make([]ratelimit.Decision, 1)
	const senders = 50000
	for i := range senders {
		q.Facts.Address = netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		for range 2 {
			addRefusals(site, q)
		}
	}
	p.bans.mu.Lock()
	pending := len(p.bans.pending)
	p.bans.mu.Unlock()
	if pending > maxRefusals || pending < maxRefusals/2 {
		t.Errorf("%d senders wait to be counted, want up to %d", pending, maxRefusals)
	}
	close(store.goOn)
	await.Within(t, time.Minute, "the refusals to be counted", func() bool {
		p.bans.mu.Lock()
		defer p.bans.mu.Unlock()
		return !p.bans.counting
	})
	if store.most != 1 || store.largest > refusalsAtOnce || store.charged < int64(pending) || failures == 0 {
		t.Errorf("%d Takes at once of up to %d hits, %d refusals charged, %d failures reported", store.most, store.largest, store.charged, failures)
	}
}

// The sender of a request is its API key, else its user, else the network of its address. A user longer than any that the
// database can have would only take memory.
func TestSenders(t *testing.T) {
	long := strings.Repeat("u", ratelimit.MaxKey)
	for _, test := range []struct {
		id            int64
		user, address string
		assumed       bool
		want          string
	}{
		{7, "alice", "192.0.2.1", false, "key/7"}, {0, "alice", "192.0.2.1", false, "user/alice"}, {0, "", "::ffff:192.0.2.1", false, "network/192.0.2.1/32"},
		{0, "", "2001:db8::1%eth0", false, "network/2001:db8::/64"}, {0, "", "192.0.2.1", true, ""}, {0, "alice", "192.0.2.1", true, "user/alice"},
		{0, long, "192.0.2.1", false, "user/" + long}, {0, long + "u", "192.0.2.1", false, "network/192.0.2.1/32"},
	} {
		q := &Request{Verdict: policy.Verdict{KeyID: test.id, User: test.user}, Facts: policy.Facts{Address: netip.MustParseAddr(test.address), Assumed: test.assumed}}
		if got := senderOf(q); got != test.want {
			t.Errorf("%+v is %q", test, got)
		}
	}
	if got := senderOf(&Request{}); got != "" {
		t.Errorf("nobody is %q", got)
	}
}
