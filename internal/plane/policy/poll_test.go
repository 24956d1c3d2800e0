package policy_test

import (
	"context"
	"fmt"
	"math/rand"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// Exactly one poll returns each committed change, although sixteen writers commit in a different order than
// they write, use savepoints, and roll back.
func TestPollReturnsEachChangeOnce(t *testing.T) {
	d := newTestDB(t)
	db := d.openDB()
	defer db.Close()
	poller := policy.NewPoller(db)
	if _, everything, err := poller.Poll(t.Context()); err != nil || !everything {
		t.Fatalf("the first poll: got everything %t, error %v, want true and none", everything, err)
	}
	var writers sync.WaitGroup
	var polls, running atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); writers.Wait() }()
	for w := range 16 {
		running.Add(1)
		writers.Go(func() {
			defer running.Add(-1)
			d.write(ctx, w, func(i int) bool { return i < 25 || polls.Load() < 20 })
		})
	}
	seen := make(map[string]int)
	for last := false; !last; polls.Add(1) {
		last = running.Load() == 0
		users, everything, err := poller.Poll(t.Context())
		if err != nil || everything {
			t.Fatalf("Poll: got everything %t, error %v, want false and none", everything, err)
		}
		for _, user := range users {
			seen[user]++
		}
	}
	rows, _ := d.pool.Query(t.Context(), "SELECT ref FROM rate_limit_changes WHERE kind = 'user'")
	users, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(users) < 200 {
		t.Fatalf("got %d changes and the error %v, want at least 200 changes", len(users), err)
	}
	for _, user := range users {
		if seen[user] != 1 {
			t.Errorf("changes of the user %q: got %d, want 1", user, seen[user])
		}
		delete(seen, user)
	}
	if len(seen) > 0 {
		t.Errorf("changes of users that were not written: got %d, want 0", len(seen))
	}
}

// write writes users in transactions while more returns true for the number of transactions so far.
func (d *testDB) write(ctx context.Context, writer int, more func(i int) bool) {
	random := rand.New(rand.NewSource(int64(writer)))
	conn, err := pgx.Connect(ctx, d.dsn)
	if err != nil {
		d.t.Error(err)
		return
	}
	defer conn.Close(context.Background())
	for i := 0; ctx.Err() == nil && more(i); i++ {
		err := writeUsers(ctx, conn, random, fmt.Sprint(writer, " ", i))
		if err != nil && ctx.Err() == nil {
			d.t.Error(err)
			return
		}
	}
}

// writeUsers writes some users in a transaction, and commits or rolls back after a random time.
func writeUsers(ctx context.Context, conn *pgx.Conn, random *rand.Rand, name string) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	for part := range 1 + random.Intn(3) {
		inner, err := tx.Begin(ctx) // a savepoint
		if err != nil {
			return err
		}
		user := fmt.Sprint(name, " ", part)
		if _, err := inner.Exec(ctx, "INSERT INTO rate_limit_users (user_id, tier) VALUES ($1, 'free')",
			user); err != nil {
			return err
		}
		if random.Intn(4) == 0 {
			err = inner.Rollback(ctx)
		} else {
			err = inner.Commit(ctx)
		}
		if err != nil {
			return err
		}
		// The pause lets transactions commit in a different order than they began.
		time.Sleep(time.Duration(random.Intn(15)) * time.Millisecond)
	}
	if random.Intn(4) == 0 {
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}
