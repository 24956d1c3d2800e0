package engine_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// boundedLimits are a limit with MaxKeys for each way to count that can have it.
func boundedLimits(most int) []*ratelimit.Limit {
	var limits []*ratelimit.Limit
	for _, l := range conformance.Limits("", 5) {
		if l.Algorithm != ratelimit.InFlight {
			l.MaxKeys = most
			limits = append(limits, l)
		}
	}
	even := &ratelimit.Limit{Prefix: "even", Algorithm: ratelimit.TokenBucket, Events: 100, Burst: 5, Window: time.Hour, MaxKeys: most}
	return append(limits, even)
}

// rowsOf is how many rows a prefix has.
func (s *site) rowsOf(prefix string) (n int) {
	s.t.Helper()
	_, _ = fmt.Sscan(s.text("SELECT count(*)::text FROM rate_limit_ephemeral WHERE prefix = $1", prefix), &n)
	return n
}

// TestAFloodLeavesWhatCounts: beyond MaxKeys, rows go that have used one unit. A key that is used up is refused
// throughout, a key that has used two units goes on with its row, and other prefixes lose nothing.
func TestAFloodLeavesWhatCounts(t *testing.T) {
	const most, flood = 50, 400
	for _, l := range boundedLimits(most) {
		t.Run(l.Prefix, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			store := s.store(engine.Options{CleanupProbability: -1, MaxBlockedKeys: -1})
			on := func(l *ratelimit.Limit, key string) ratelimit.Hit { return ratelimit.Hit{Limit: l, Key: key, Cost: 1} }
			for range 5 {
				takeOne(t, store, on(l, "used up"))
			}
			for range 2 {
				takeOne(t, store, on(l, "used"))
			}
			other := *l
			other.Prefix, other.MaxKeys = "other", 0
			hits := func(l *ratelimit.Limit) {
				var group sync.WaitGroup
				for i := range flood {
					group.Go(func() { takeOne(t, store, on(l, fmt.Sprint(i))) })
				}
				group.Wait()
			}
			hits(&other)
			hits(l)
			await.Within(t, longTime, "the flood to be deleted", func() bool {
				if takeOne(t, store, on(l, "used up")).Allowed {
					t.Fatal("a key that is used up passes")
				}
				return s.rowsOf(l.Prefix) <= most
			})
			if d := takeOne(t, store, on(l, "used")); d.Remaining != 2 {
				t.Errorf("the key that has used two units: %+v", d)
			}
			if n := s.rowsOf("other"); n != flood {
				t.Errorf("another prefix has %d rows, want %d", n, flood)
			}
			if n := len(store.Stats().Overfull); n != 0 {
				t.Errorf("%d prefixes are overfull", n)
			}
			s.nothingReported()
		})
	}
}

// TestAPrefixThatIsOverfullIsReported: too few rows can be deleted. The log, the statistics and the registry of
// proxies say so, until there are few rows again.
func TestAPrefixThatIsOverfullIsReported(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var mu sync.Mutex
	said := ""
	store := s.proxy(s.db(""), engine.Options{CleanupProbability: -1, OnError: func(err error) {
		mu.Lock()
		defer mu.Unlock()
		said += err.Error() + "\n"
	}}, registry.Node{})
	store.Prepare()
	says := func(what string) bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(said, what)
	}
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 5, Window: time.Hour, MaxKeys: 10}
	takeOne(t, store, ratelimit.Hit{Limit: l, Key: "in use", Cost: 1})
	s.exec("INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at) SELECT 'p', n::text, 2, now(), now() + interval '1 hour' FROM generate_series(1, 30) n")
	const text = `prefix "p" has more than max_keys (10) keys, and the table grows`
	await.Within(t, longTime, "the log", func() bool { return says(text) })
	await.Within(t, longTime, "the registry", func() bool {
		return strings.Contains(s.text("SELECT coalesce((SELECT array_to_string(problems, ';') FROM rate_limit_nodes), '')"), text)
	})
	if n := len(store.Stats().Overfull); n != 1 {
		t.Errorf("%d prefixes are overfull, want 1", n)
	}
	if n := s.rowsOf("p"); n != 30 {
		t.Errorf("%d rows, want the 30 that have used more than one unit", n)
	}
	s.exec("DELETE FROM rate_limit_ephemeral WHERE key NOT IN ('1', '2')")
	await.Within(t, longTime, "the log", func() bool { return says(`prefix "p" has at most max_keys (10) keys again`) })
	await.Within(t, longTime, "the registry", func() bool {
		return s.text("SELECT array_to_string(problems, ';') FROM rate_limit_nodes") == "" && len(store.Stats().Overfull) == 0
	})
}

// TestADeletionThatTakesTooLongIsReported: the prefix counts as overfull.
func TestADeletionThatTakesTooLongIsReported(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	reported := make(chan error, 100)
	late := &between{s.db(""), func(ctx context.Context, statements []*pgdb.Statement, send answerFunc) error {
		if strings.Contains(statements[len(statements)-1].SQL, "r.slots IS NULL") { // a deletion for MaxKeys
			return context.DeadlineExceeded
		}
		return send(ctx, statements)
	}}
	store := s.storeOn(late, engine.Options{CleanupProbability: -1, OnError: func(err error) { reported <- err }})
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 5, Window: time.Hour, MaxKeys: 10}
	takeOne(t, store, ratelimit.Hit{Limit: l, Key: "in use", Cost: 1})
	s.exec("INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at) SELECT 'p', n::text, 1, now(), now() + interval '1 hour' FROM generate_series(1, 30) n")
	await.Within(t, longTime, "the prefix to be overfull", func() bool { return len(store.Stats().Overfull) == 1 })
	await.Within(t, longTime, "the error", func() bool {
		return strings.Contains((<-reported).Error(), `max_keys of prefix "p": deleting expired rows: context deadline exceeded`)
	})
}
