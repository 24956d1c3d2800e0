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

// Sixteen writers commit in another order than they write, use savepoints, and roll back. Exactly one poll
// finds each change that becomes visible.
func TestNoChangeIsMissedOrFoundTwice(t *testing.T) {
	s := newSite(t)
	db := s.db()
	defer db.Close()
	poller := policy.NewPoller(db)
	ctx, cancel := context.WithCancel(t.Context())
	if _, everything, err := poller.Poll(ctx); err != nil || !everything {
		t.Fatalf("the first poll: everything %v, %v", everything, err)
	}
	var writers sync.WaitGroup
	var polls atomic.Int64
	defer func() { cancel(); writers.Wait() }()
	for w := range 16 {
		writers.Go(func() {
			random := rand.New(rand.NewSource(int64(w)))
			conn, err := pgx.Connect(ctx, s.dsn)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close(context.Background())
			for i := 0; ctx.Err() == nil && (i < 25 || polls.Load() < 20); i++ {
				if err := writeUsers(ctx, conn, random, fmt.Sprint(w, " ", i)); err != nil &&
					ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	found := make(map[string]int)
	for last := false; ; polls.Add(1) {
		users, everything, err := poller.Poll(ctx)
		if err != nil || everything {
			t.Fatalf("everything %v, %v", everything, err)
		}
		for _, user := range users {
			found[user]++
		}
		if last {
			break
		}
		select {
		case <-done:
			last = true
		default:
		}
	}
	rows, err := s.pool.Query(ctx, "SELECT ref FROM rate_limit_changes WHERE kind = 'user'")
	if err != nil {
		t.Fatal(err)
	}
	users, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if len(users) < 200 {
		t.Fatalf("got %d changes, want more", len(users))
	}
	for _, user := range users {
		if found[user] != 1 {
			t.Errorf("the user %q: got %d changes, want 1", user, found[user])
		}
		delete(found, user)
	}
	if len(found) > 0 {
		t.Errorf("got %d changes of users that were not written, want none", len(found))
	}
}

// writeUsers writes some users in a transaction, and commits it or rolls it back after a random time.
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
		// transactions commit in another order than they began
		time.Sleep(time.Duration(random.Intn(15)) * time.Millisecond)
	}
	if random.Intn(4) == 0 {
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}
