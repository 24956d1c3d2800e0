package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// All programs that use the same Postgres database share their counts.
func Example() {
	db, err := pgxdb.Open(os.Getenv("DATABASE_URL"), pgxdb.Options{})
	if err != nil {
		log.Fatal(err)
	}
	store, err := postgres.New(db, postgres.Options{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.NewLimiter(
		store, ratelimit.Limit{Prefix: "api", Events: 100, Window: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	d, err := limiter.Take(context.Background(), "user:123", 1)
	switch {
	case err != nil:
		log.Print(err) // no decision: let the request pass, or refuse it
	case !d.Allowed:
		fmt.Println("refused; try again after", d.RetryAfter)
	}
}

// Counts of a store in memory end with the process.
func ExampleLimiter_Take() {
	store, err := memory.New(memory.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	limiter, err := ratelimit.NewLimiter(store, ratelimit.Limit{
		Prefix: "api", Algorithm: ratelimit.FixedWindow, Events: 2, Window: time.Minute,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := 0; i < 3; i++ {
		d, err := limiter.Take(context.Background(), "user:123", 1)
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter > 30*time.Second, err)
	}
	// Output:
	// true 1 false <nil>
	// true 0 false <nil>
	// false 0 true <nil>
}

func ExampleLimiter_Peek() {
	store, _ := memory.New(memory.Options{})
	defer store.Close()
	limiter, _ := ratelimit.NewLimiter(store, ratelimit.Limit{Prefix: "api", Events: 5, Window: time.Minute})
	_, _ = limiter.Take(context.Background(), "user:123", 3)
	d, _ := limiter.Peek(context.Background(), "user:123", 3)
	fmt.Println(d.Allowed, d.Remaining, "of", d.Quota)
	// Output: false 2 of 5
}

func ExampleLimiter_Reset() {
	store, _ := memory.New(memory.Options{})
	defer store.Close()
	limiter, _ := ratelimit.NewLimiter(store, ratelimit.Limit{Prefix: "api", Events: 5, Window: time.Minute})
	_, _ = limiter.Take(context.Background(), "user:123", 5)
	_ = limiter.Reset(context.Background(), "user:123")
	d, _ := limiter.Peek(context.Background(), "user:123", 1)
	fmt.Println(d.Remaining)
	// Output: 5
}

// Wait slows a client down instead of refusing it.
func ExampleLimiter_Wait() {
	store, _ := memory.New(memory.Options{})
	defer store.Close()
	limiter, _ := ratelimit.NewLimiter(store, ratelimit.Limit{
		Prefix: "mail", Algorithm: ratelimit.GCRA, Events: 100, Window: time.Second, Burst: 1,
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	start := time.Now()
	for i := 0; i < 3; i++ {
		if _, err := limiter.Wait(ctx, "smtp", 1); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(time.Since(start) >= 20*time.Millisecond)

	// With a deadline nearer than RetryAfter, Wait fails immediately.
	slow, _ := ratelimit.NewLimiter(store, ratelimit.Limit{Prefix: "slow", Events: 1, Window: time.Hour})
	_, _ = slow.Wait(ctx, "smtp", 1)
	_, err := slow.Wait(ctx, "smtp", 1)
	fmt.Println(errors.Is(err, ratelimit.ErrTooLong))
	// Output:
	// true
	// true
}

// Several limits on one request: all are charged, or none.
func ExampleStore() {
	store, _ := memory.New(memory.Options{})
	defer store.Close()
	perUser := &ratelimit.Limit{Prefix: "user", Events: 2, Window: time.Minute}
	overall := &ratelimit.Limit{Prefix: "all", Algorithm: ratelimit.TokenBucket, Events: 3,
		Window: time.Minute}
	for _, user := range []string{"ann", "ann", "ann", "bob", "eve"} {
		hits := []ratelimit.Hit{{Limit: perUser, Key: user, Cost: 1}, {Limit: overall, Cost: 1}}
		decisions := make([]ratelimit.Decision, len(hits))
		if err := store.Take(context.Background(), time.Second, hits, decisions); err != nil {
			fmt.Println(err)
		}
		fmt.Println(user, decisions[0].Allowed && decisions[1].Allowed)
	}
	// Output:
	// ann true
	// ann true
	// ann false
	// bob true
	// eve false
}

// A negative cost refunds what was charged and not used.
func ExampleHit() {
	store, _ := memory.New(memory.Options{})
	defer store.Close()
	limiter, _ := ratelimit.NewLimiter(
		store, ratelimit.Limit{Prefix: "tokens", Events: 1000, Window: time.Hour})
	_, _ = limiter.Take(context.Background(), "ann", 800) // an estimate
	d, _ := limiter.Take(context.Background(), "ann", -300)
	fmt.Println(d.Remaining)
	// Output: 500
}

func ExampleParseRate() {
	for _, text := range []string{"100 1m", "5/10s", "10000 1mo calendar Europe/Berlin"} {
		r, err := ratelimit.ParseRate(text)
		fmt.Println(r.Events, r.Window, r.Calendar == ratelimit.Month, r.TimeZone, err)
	}
	_, err := ratelimit.ParseRate("0 1m")
	fmt.Println(err)
	// Output:
	// 100 1m0s false  <nil>
	// 5 10s false  <nil>
	// 10000 0s true Europe/Berlin <nil>
	// limit: "0 1m": must be a whole number of events from 1 to 9007199254740992, then a window with the units ms, s, m, h, d and w, as in 100 1m, or on the calendar, as in 10000 1mo calendar
}
