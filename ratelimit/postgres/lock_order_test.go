package postgres_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// TestLockOrder: whatever order hits come in, a statement locks their rows in the
// order of prefix and key, so that no two can wait for each other. A statement
// that waits for row b has row a already.
func TestLockOrder(t *testing.T) {
	s := newSite(t)
	store, conn := s.store(postgres.Options{CleanupProbability: -1}), s.conn
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	l := &ratelimit.Limit{Prefix: "p", Events: 10, Window: time.Hour}
	hits := []ratelimit.Hit{{Limit: l, Key: "b", Cost: 1}, {Limit: l, Key: "a", Cost: 1}}
	if err := store.Take(ctx, 10*time.Second, hits, make([]ratelimit.Decision, 2)); err != nil {
		t.Fatal(err)
	}
	other, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(ctx) }()
	if _, err := other.Exec(ctx, "SELECT FROM rate_limit_ephemeral WHERE key = 'b' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	taken := make(chan error, 1)
	go func() { taken <- store.Take(ctx, 20*time.Second, hits, make([]ratelimit.Decision, 2)) }()
	for waiting := false; !waiting; {
		if err := other.QueryRow(ctx, "SELECT count(*) > 0 FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND datname = current_database()").Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	free := 0
	if err := other.QueryRow(ctx, "SELECT count(*) FROM (SELECT FROM rate_limit_ephemeral WHERE key = 'a' FOR UPDATE SKIP LOCKED) a").Scan(&free); err != nil {
		t.Fatal(err)
	}
	if free != 0 {
		t.Error("a statement waits for row b, and has not locked row a before")
	}
	if err := other.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-taken; err != nil {
		t.Error(err)
	}
}

// orderDB checks takes with keys that the store has sorted: each must return its rows in the
// order of the keys, which is the order in which the server locked them.
type orderDB struct {
	postgres.DB
	t     *testing.T
	mu    sync.Mutex
	takes int // of several rows
}

func (d *orderDB) Run(ctx context.Context, statements []*postgres.Statement) error {
	err := d.DB.Run(ctx, statements)
	for _, s := range statements {
		if !comesSorted(s.SQL) || s.Rows < 2 {
			continue
		}
		if keys, ok := s.Args[2].([]string); !ok || !sort.StringsAreSorted(keys) || s.Rows != len(keys) {
			d.t.Errorf("%d rows for the keys %v", s.Rows, s.Args[2])
		}
		var cells [][]byte
		for rest := s.Result; len(rest) > 0; {
			size := max(0, int(int32(binary.BigEndian.Uint32(rest)))) // -1 is NULL
			cells = append(cells, rest[4:4+size])
			rest = rest[4+size:]
		}
		for row := range s.Rows {
			if slot := binary.BigEndian.Uint64(cells[row*len(cells)/s.Rows]); slot != uint64(row+1) {
				d.t.Errorf("row %d of %d is that of key %d", row+1, s.Rows, slot)
			}
		}
		d.mu.Lock()
		d.takes++
		d.mu.Unlock()
	}
	return err
}

// TestTakesLockInTheOrderOfTheirKeys lets stores with connections of their own charge the
// same keys at the same time, in batches of any order: each statement locks the rows in the
// order of their keys, and no two wait for each other.
func TestTakesLockInTheOrderOfTheirKeys(t *testing.T) {
	const keys, batches = 60, 60
	s := newSite(t)
	s.exec(postgres.TableSQL)
	limits := conformance.Limits("", 900)
	durable := *limits[0]
	durable.Durable = true
	limits = append(limits, &durable)
	var group sync.WaitGroup
	var dbs []*orderDB
	for process := range 4 {
		db := &orderDB{DB: s.db(""), t: t}
		dbs = append(dbs, db)
		store := s.storeOn(db, without)
		group.Add(1)
		go func() {
			defer group.Done()
			random := rand.New(rand.NewSource(int64(process)))
			for i := range batches {
				l := limits[i%len(limits)] // all processes charge one limit at about the same time
				var calls []*batch.Call
				for _, key := range random.Perm(keys)[:2+random.Intn(keys-1)] {
					// Keys in different scripts, and of which one is the beginning of another.
					text := strings.Repeat([]string{"k", "K", "é", "日", "_"}[key%5], 1+key/5)
					calls = append(calls, callFor(false, ratelimit.Hit{Limit: l, Key: text, Cost: 1}))
				}
				if random.Intn(2) == 0 {
					hits := []ratelimit.Hit{calls[0].Hits[0], calls[1].Hits[0]}
					calls = append(calls, callFor(false, hits...)) // in a transaction
				}
				store.DecideBatch(calls)
				for _, c := range calls {
					if c.Err != nil {
						t.Error(c.Err)
						return
					}
				}
			}
		}()
	}
	group.Wait()
	for process, db := range dbs {
		if db.takes < batches {
			t.Errorf("process %d sent %d takes of sorted keys", process, db.takes)
		}
	}
	// The server counts a deadlock when the session is idle, a second later at most.
	if deadlocks := s.text("SELECT deadlocks::text FROM pg_stat_database WHERE datname = current_database()"); deadlocks != "0" {
		t.Errorf("%s deadlocks", deadlocks)
	}
	if n := fmt.Sprint(keys); s.text("SELECT max(n)::text FROM (SELECT count(*) AS n FROM rate_limit_ephemeral GROUP BY prefix) n") != n {
		t.Errorf("not all of the %s keys have a row", n)
	}
}
