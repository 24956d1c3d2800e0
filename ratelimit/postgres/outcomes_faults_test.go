package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// beside runs others until the requests of one client have ended, and returns their attempts.
func (n *network) beside(store *postgres.Store, requests int, others ...func()) *attempts {
	ended := make(chan struct{})
	var group sync.WaitGroup
	for _, other := range others {
		group.Go(func() {
			for {
				select {
				case <-ended:
					return
				case <-time.After(pace):
					other()
				}
			}
		})
	}
	time.Sleep(20 * pace)
	count := &attempts{}
	for i := range requests {
		h := hitOn("beside", 1000, false)
		h.Key = fmt.Sprint("k", i%7)
		_, err := n.ask(store, h)
		count.add(err)
		time.Sleep(pace)
	}
	close(ended)
	group.Wait()
	return count
}

func failsNoOthers(n *network) {
	store := n.away(postgres.Options{})
	var zones []ratelimit.Hit
	for i := range 1000 {
		zones = append(zones, hitOn(fmt.Sprint("zone", i), 1000, false))
	}
	n.most("requests", n.beside(store, 40, func() {
		if _, _, err := tryOne(store, 2*time.Millisecond, hitOn("short", 1000, false)); err == nil && n.faults == nil {
			n.t.Error("a decision in 2 ms")
		}
	}, func() {
		_, _ = n.ask(store, zones...)
		time.Sleep(10 * pace)
	}))
}

func overload(n *network) {
	store := n.away(postgres.Options{})
	var at attempts
	var group sync.WaitGroup
	for i := range 2000 {
		group.Go(func() {
			h := hitOn("many", 1_000_000, false)
			h.Key = fmt.Sprint("k", i)
			_, err := n.ask(store, h)
			if at.add(err); err != nil && n.faults == nil && !errors.Is(err, ratelimit.ErrTimeout) {
				n.t.Errorf("one of 2,000 requests at once: %v", err)
			}
		})
	}
	group.Wait()
	n.t.Logf("%d decided, %d not", at.decided.Load(), at.failed.Load())
	if at.decided.Load() == 0 && n.faults == nil {
		n.t.Error("of 2,000 requests at once none is decided")
	}
	n.most("requests after them", n.beside(store, 20))
}

func lockedRow(n *network) {
	store := n.away(postgres.Options{})
	locked := hitOn("beside", 1000, false)
	locked.Key = "locked"
	takeOne(n.t, n.near(), locked)
	n.exec("BEGIN; SELECT FROM rate_limit_ephemeral WHERE key = 'locked' FOR UPDATE")
	n.most("requests on other rows", n.beside(store, 60, func() {
		if _, err := n.ask(store, locked); err == nil {
			n.t.Error("a decision on a locked row")
		}
	}))
	n.exec("COMMIT")
	await.Within(n.t, 20*time.Second, "a decision on the row", func() bool { _, err := n.ask(store, locked); return err == nil })
}

func burstAfterOutage(n *network) {
	n.proxy.SetFaults(n.faults)
	n.proxy.SetDown(true)
	store := n.storeOn(n.open(n.t, n.slow), postgres.Options{CleanupProbability: -1, OnError: func(error) {}})
	for round, during := range []string{"a start without a database", "an outage"} {
		n.proxy.SetDown(true)
		hit := hitOn(fmt.Sprint("burst", round), 10, false)
		for range 3 {
			if _, err := n.ask(store, hit); err == nil {
				n.t.Fatalf("%s: a decision", during)
			}
			time.Sleep(pace)
		}
		n.proxy.SetDown(false)
		time.Sleep(3 * time.Second) // without a request
		var count attempts
		var allowed atomic.Int64
		var group sync.WaitGroup
		for range 40 {
			group.Go(func() {
				d, err := n.ask(store, hit)
				if count.add(err); err == nil && allAllowed(d) {
					allowed.Add(1)
				}
			})
		}
		group.Wait()
		passed := allowed.Load()
		if n.faults == nil {
			n.most("the burst after "+during, &count)
		}
		if passed > 10 || n.faults == nil && passed != 10 {
			n.t.Errorf("after %s %d passed, want 10", during, passed)
		}
	}
}

func refusesWhileHanging(n *network) {
	store := n.away(postgres.Options{})
	used, free := hitOn("used", 1, false), hitOn("free", 1000, false)
	takeOne(n.t, n.near(), used)
	await.Within(n.t, 20*time.Second, "a refusal", func() bool { d, err := n.ask(store, used); return err == nil && !d[0].Allowed })
	n.proxy.SetHanging(true)
	var undecided int
	for began := time.Now(); time.Since(began) < 2*time.Second; time.Sleep(pace) {
		if d, err := n.ask(store, used); err != nil || d[0].Allowed {
			n.t.Fatalf("the used-up key after %v: %+v, %v", time.Since(began), d, err)
		}
		if _, err := n.ask(store, free); err != nil {
			undecided++
		}
	}
	if undecided < 5 {
		n.t.Errorf("the network does not hang: %d without a decision", undecided)
	}
	n.proxy.SetHanging(false)
	await.Within(n.t, 20*time.Second, "a decision", func() bool { _, err := n.ask(store, free); return err == nil })
}

func alteredTables(n *network) {
	store := n.away(postgres.Options{})
	types := []string{"int", "bigint"}
	altered := 0
	n.most("requests", n.beside(store, 60, func() {
		n.exec("ALTER TABLE rate_limit_ephemeral ALTER COLUMN count TYPE " + types[altered%2])
		altered++
		time.Sleep(20 * pace)
	}))
	if altered < 3 {
		n.t.Errorf("the table was altered %d times", altered)
	}
}

func patientMigration(n *network) {
	n.exec("DROP TABLE rate_limit_ephemeral, rate_limit_durable; " + npmTables)
	n.exec("BEGIN; SELECT count(*) FROM rate_limit_ephemeral")
	n.proxy.SetFaults(n.faults)
	var failures atomic.Int64
	store := n.storeOn(n.open(n.t, n.slow), postgres.Options{OnError: func(error) { failures.Add(1) }})
	node := cluster.Connect(n.t, n.dsn)
	for i := 0; failures.Load() < 2; i++ { // the migration has given way twice
		if i == 20_000 {
			n.t.Fatal("the migration does not give way")
		}
		store.Prepare() // as the next request would
		began := time.Now()
		if _, err := node.Exec(context.Background(), `INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at) VALUES ('node', $1, 1, now(), now())`, fmt.Sprint(i)); err != nil {
			n.t.Fatal(err)
		}
		if took := time.Since(began); took > 5*time.Second {
			n.t.Errorf("a statement of another program waited for %v", took)
		}
		time.Sleep(time.Millisecond)
	}
	n.exec("COMMIT")
	await.Within(n.t, 20*time.Second, "a decision", func() bool { _, err := n.ask(store, hitOn("a", 1000, false)); return err == nil })
}
