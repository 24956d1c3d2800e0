package engine_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/parts"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// partTimeout is for one request of the tests that move parts.
const partTimeout = 250 * time.Millisecond

// partsLoad takes from many keys until stop is closed, and counts by the part.
type partsLoad struct {
	Granted, Unknown [testParts]int64 // atomic; without an answer is unknown
	Requests         int64
}

func (l *partsLoad) run(store ratelimit.Store, limit *ratelimit.Limit, callers, keys int, stop <-chan struct{}) *sync.WaitGroup {
	var all sync.WaitGroup
	for c := range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			d := make([]ratelimit.Decision, 1)
			for i := c; ; i += callers {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprint("key ", i%keys)
				part := parts.Of(key, testParts)
				err := store.Take(context.Background(), partTimeout, []ratelimit.Hit{{Limit: limit, Key: key, Cost: 1}}, d)
				atomic.AddInt64(&l.Requests, 1)
				switch {
				case err != nil:
					atomic.AddInt64(&l.Unknown[part], 1)
					time.Sleep(time.Millisecond)
				case d[0].Allowed:
					atomic.AddInt64(&l.Granted[part], 1)
				}
			}
		}()
	}
	return &all
}

// copy is the counts as of now.
func (l *partsLoad) copy() *partsLoad {
	c := &partsLoad{Requests: atomic.LoadInt64(&l.Requests)}
	for part := range testParts {
		c.Granted[part] = atomic.LoadInt64(&l.Granted[part])
		c.Unknown[part] = atomic.LoadInt64(&l.Unknown[part])
	}
	return c
}

// compare compares what was granted with what was counted. A request without an answer may have counted.
func (s *spread) compare(t *testing.T, l *partsLoad, table, prefix string, lost map[int]bool) {
	t.Helper()
	granted, unknown := int64(0), int64(0)
	counted := s.counted(table, prefix)
	sum := int64(0)
	for part := range testParts {
		granted += l.Granted[part]
		unknown += l.Unknown[part]
		sum += counted[part]
		if lost[part] {
			continue
		}
		if counted[part] < l.Granted[part] || counted[part] > l.Granted[part]+l.Unknown[part] {
			t.Errorf("part %d: granted %d, without an answer %d, counted %d", part, l.Granted[part], l.Unknown[part], counted[part])
		}
	}
	t.Logf("%d requests: granted %d, without an answer %d, counted %d", l.Requests, granted, unknown, sum)
}

// block is the time in which a move holds the lock of a part: from when the lock was seen first, to when it
// was seen last.
type block struct{ from, to time.Time }

// watchBlock looks for the lock of a move of a part at all workers, every few milliseconds, until stop is called.
func (s *spread) watchBlock(part int) (stop func() block) {
	group := s.rows(s.DSN(), "SELECT colocationid::text FROM pg_dist_partition WHERE logicalrelid = $1::regclass", fmt.Sprintf("rl_p%d.rate_limit_ephemeral", part))[0]
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var found block
	var all sync.WaitGroup
	for _, w := range s.Workers[:3] {
		conn := cluster.Watch(s.t, ctx, w.DSN("limits"))
		all.Add(1)
		go func() {
			defer all.Done()
			defer conn.Close(context.Background())
			for ctx.Err() == nil {
				var held bool
				// 8 is Citus's class of the locks of what it knows of the shards that move together.
				err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 8 AND mode = 'ExclusiveLock' AND granted
	AND objid::bigint = $1::bigint)`, pgx.QueryExecModeSimpleProtocol, group).Scan(&held)
				now := time.Now()
				if err != nil && ctx.Err() == nil {
					s.t.Error(err)
				}
				if err == nil && held {
					mu.Lock()
					if found.from.IsZero() {
						found.from = now
					}
					found.to = now
					mu.Unlock()
				}
				time.Sleep(5 * time.Millisecond)
			}
		}()
	}
	return func() block {
		time.Sleep(20 * time.Millisecond)
		cancel()
		all.Wait()
		return found
	}
}

// prober asks for one key all the time, one request after the other.
type prober struct {
	mu       sync.Mutex
	attempts []attempt
}

type attempt struct {
	from, to time.Time
	err      error
}

func (p *prober) run(store ratelimit.Store, limit *ratelimit.Limit, key string, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		a := attempt{from: time.Now()}
		a.err = store.Take(context.Background(), partTimeout, []ratelimit.Hit{{Limit: limit, Key: key, Cost: 1}}, make([]ratelimit.Decision, 1))
		a.to = time.Now()
		p.mu.Lock()
		p.attempts = append(p.attempts, a)
		p.mu.Unlock()
		time.Sleep(2 * time.Millisecond)
	}
}

// awaitPass waits until a request that begins now has passed, until a time at most.
func (p *prober) awaitPass(until time.Time) {
	for began := time.Now(); time.Now().Before(until); time.Sleep(2 * time.Millisecond) {
		p.mu.Lock()
		n := len(p.attempts)
		passed := n > 0 && p.attempts[n-1].err == nil && p.attempts[n-1].from.After(began)
		p.mu.Unlock()
		if passed {
			return
		}
	}
}

// after returns how long after a block a request has failed, and when the first one passed.
func (p *prober) after(b block) (failed, passed time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.attempts {
		switch {
		case a.err != nil && a.to.After(b.to):
			failed = max(failed, a.to.Sub(b.to))
		case a.err == nil && a.to.After(b.to) && passed == 0:
			passed = a.to.Sub(b.to)
		}
	}
	return failed, passed
}

// testMoves: while parts move, what is granted is counted. A request that comes after a move has let the part go
// is decided within its timeout.
func (s *spread) testMoves(t *testing.T, driver string, durable bool) {
	limit := &ratelimit.Limit{Prefix: fmt.Sprint("moves ", driver, durable), Algorithm: ratelimit.FixedWindow, Events: 1 << 40, Window: 24 * time.Hour, Durable: durable, SynchronousCommit: durable}
	probed := &ratelimit.Limit{Prefix: "probed " + limit.Prefix, Algorithm: ratelimit.FixedWindow, Events: 1 << 40, Window: 24 * time.Hour, Durable: durable}
	var stores []*store.Store
	for range 2 {
		stores = append(stores, s.store(t, driver, engine.Options{}))
	}
	var l partsLoad
	stop := make(chan struct{})
	var loads []*sync.WaitGroup
	for _, store := range stores {
		loads = append(loads, l.run(store, limit, 8, 400, stop))
	}
	for move := range 12 {
		late := await.Lateness()
		part := move % 4
		p := &prober{}
		probing := make(chan struct{})
		var ended sync.WaitGroup
		ended.Add(1)
		go func() {
			defer ended.Done()
			p.run(stores[move%2], probed, keyIn(part), probing)
		}()
		time.Sleep(50 * time.Millisecond)
		watched := s.watchBlock(part)
		began := time.Now()
		s.move(part, (s.where(part)+1)%3)
		took := time.Since(began)
		time.Sleep(partTimeout + 100*time.Millisecond)
		p.awaitPass(time.Now().Add(longTime))
		close(probing)
		ended.Wait()
		b := watched()
		failed, passed := p.after(b)
		t.Logf("move %d took %v and blocked the part for %v; %v after that a request passed, and until %v after it one failed", move,
			took.Round(time.Millisecond), b.to.Sub(b.from).Round(time.Millisecond), passed.Round(time.Millisecond), failed.Round(time.Millisecond))
		if b.from.IsZero() {
			t.Fatalf("move %d: its lock was not seen", move)
		}
		if most := *citusLate + 4*late(); failed > most || passed == 0 || passed > most {
			t.Errorf("move %d: a request failed %v after the part was free again, and one passed after %v; want at most %v", move, failed, passed, most)
		}
	}
	close(stop)
	for _, one := range loads {
		one.Wait()
	}
	s.compare(t, &l, map[bool]string{false: "rate_limit_ephemeral", true: "rate_limit_durable"}[durable], limit.Prefix, nil)
}

// keyIn is a key of a part.
func keyIn(part int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("in ", i); parts.Of(key, testParts) == part {
			return key
		}
	}
}
