package store_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// localProxies are three proxies with on_error local that share a network, and count requests on two limits.
type localProxies struct {
	limits               [2]*ratelimit.Limit
	stores               []*store.Store
	admitted, unanswered [2]atomic.Int64
}

func openLocalProxies(t *testing.T, dsn string) *localProxies {
	p := &localProxies{limits: [2]*ratelimit.Limit{
		{Prefix: "durable", Algorithm: ratelimit.FixedWindow, Events: 1000, Window: time.Hour, Durable: true},
		{Prefix: "ephemeral", Algorithm: ratelimit.SlidingWindow, Events: 1000, Window: time.Hour},
	}}
	for _, driver := range []string{"pgxdb", "pgwire", "pgxdb"} {
		s, err := store.Open(drivers.All[driver](t, dsn), engine.Options{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		s.UseLocal()
		s.SetProxies(3)
		await.Within(t, time.Minute, "the tables", func() bool { s.Prepare(); return s.Ready() })
		p.stores = append(p.stores, s)
	}
	return p
}

// ask sends a request on a limit.
func (p *localProxies) ask(t *testing.T, s *store.Store, limit int) {
	hits := []ratelimit.Hit{{Limit: p.limits[limit], Key: "k", Cost: 1}}
	decisions := make([]ratelimit.Decision, 1)
	err := s.Take(t.Context(), 250*time.Millisecond, hits, decisions)
	if err != nil && !s.TakeLocal(err, hits, decisions) {
		t.Errorf("TakeLocal after %v returns false, want true", err)
	}
	if errors.Is(err, ratelimit.ErrTimeout) || errors.Is(err, engine.ErrSent) {
		p.unanswered[limit].Add(1)
	}
	if decisions[0].Allowed {
		p.admitted[limit].Add(1)
	}
}

// Three proxies with on_error local share a connection that flaps, to a server that restarts. Together they
// admit at most the limit, one request for each proxy, and those without an answer, in both tables.
func TestFlapsAndRestartAdmitOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s, and proxies that do not run for a while charge too late")
	}
	server := cluster.Private(t, cluster.Options{})
	network, dsn := slownet.ListenFor(t, server.DSN("postgres"), 0)
	p := openLocalProxies(t, dsn)
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for _, s := range p.stores {
		for i := range p.limits {
			asking.Go(func() {
				for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
					p.ask(t, s, i)
				}
			})
		}
	}
	time.Sleep(time.Second)
	for range 8 {
		network.SetHanging(true)
		network.CloseConnections()
		time.Sleep(700 * time.Millisecond)
		network.SetHanging(false)
		time.Sleep(150 * time.Millisecond)
	}
	if err := errors.Join(server.Stop(), server.Restart(t.Context())); err != nil {
		t.Error(err)
	}
	time.Sleep(5 * time.Second)
	stop()
	asking.Wait()
	lost := int64(0)
	for _, s := range p.stores {
		lost += s.Local().Lost
	}
	for i, l := range p.limits {
		bound := l.Events + 6 + p.unanswered[i].Load()
		if lost > 0 {
			bound += l.Events / 3
		}
		if n := p.admitted[i].Load(); n > bound || n < l.Events*9/10 {
			t.Errorf("%s: %d of %d admitted, want at most %d: %d had no answer, %d charges lost",
				l.Prefix, n, l.Events, bound, p.unanswered[i].Load(), lost)
		}
	}
}
