package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// TestOverloadKeepsTheThroughput offers a healthy but slow database twice as many requests as
// it can decide: it goes on deciding as many as it can. A request that cannot be decided in
// time must not waste a statement, and a late request is no sign of a dead database.
func TestOverloadKeepsTheThroughput(t *testing.T) {
	for _, test := range []struct {
		name     string
		hit      time.Duration // what a hit costs the server
		latency  time.Duration // what a pipeline waits in addition, beside others
		conns    int           // of the DB
		hits     int           // of a request
		offered  int           // requests a second
		capacity int
	}{
		{"a busy server", 100 * time.Microsecond, 0, 8, 1, 20_000, 10_000},
		{"a busy and distant server", 100 * time.Microsecond, 50 * time.Millisecond, 8, 1, 20_000, 10_000},
		{"a distant server", 0, 100 * time.Millisecond, 8, 1, 30_000, 30_000},
		{"two limits", 100 * time.Microsecond, 50 * time.Millisecond, 8, 2, 10_000, 5_000},
		{"a slow server", 400 * time.Microsecond, 0, 8, 1, 5_000, 2_500},
		{"a slow and distant server", 400 * time.Microsecond, 60 * time.Millisecond, 8, 1, 5_000, 2_500},
		{"one connection", 0, 80 * time.Millisecond, 1, 1, 30_000, 30_000},
		{"two connections", 0, 100 * time.Millisecond, 2, 1, 30_000, 30_000},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := make(chan struct{}, 1) // it works on one pipeline at a time
				conns := make(chan struct{}, test.conns)
				answer := func(ctx context.Context, statements []*postgres.Statement) error {
					hits := 0
					for _, s := range statements {
						hits += len(keysOf(s))
					}
					select {
					case conns <- struct{}{}:
						defer func() { <-conns }()
					case <-ctx.Done():
						return ctx.Err()
					}
					select {
					case server <- struct{}{}:
					case <-ctx.Done():
						return ctx.Err()
					}
					time.Sleep(time.Duration(hits) * test.hit)
					<-server
					time.Sleep(test.latency)
					if ctx.Err() != nil {
						return ctx.Err()
					}
					return admit(ctx, statements)
				}
				store := newStore(t, fewConns{&fakeDB{answer: answer}, test.conns}, without)
				var decided, unavailable atomic.Int64
				var group sync.WaitGroup
				seconds := 4
				if raced {
					seconds = 2 // make test runs all four without the race detector, too
				}
				tick := 10 * time.Millisecond
				for n := range int(time.Duration(seconds) * time.Second / tick) {
					for i := range test.offered / int(time.Second/tick) {
						group.Go(func() {
							var h []ratelimit.Hit
							for j := range test.hits {
								h = append(h, fakeHits(fmt.Sprint(n, " ", i, " ", j))...)
							}
							err := store.Take(context.Background(), 250*time.Millisecond, h, make([]ratelimit.Decision, test.hits))
							if err == nil && n >= 100 { // after a second
								decided.Add(1)
							}
							if err != nil && !errors.Is(err, ratelimit.ErrTimeout) {
								unavailable.Add(1)
							}
						})
					}
					time.Sleep(tick)
				}
				group.Wait()
				if got := int(decided.Load()) / (seconds - 1); got < test.capacity*9/10 && !raced { // one second is too short to say
					t.Errorf("%d requests a second are decided, of %d that the server can", got, test.capacity)
				}
				if n := unavailable.Load(); n > 0 {
					t.Errorf("%d requests fail as if the database were down", n)
				}
			})
		})
	}
}

// fewConns is a DB that knows how many connections it has at most.
type fewConns struct {
	postgres.DB
	n int
}

func (d fewConns) MaxConns() int { return d.n }
