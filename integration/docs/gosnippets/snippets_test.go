package gosnippets

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/httplimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// Each function is one Go block of the documentation. Its parameters are the
// values that the block uses and does not define.

// docs/programs.md: One limit.
func oneLimit(ctx context.Context) error {
	db, err := pgxdb.Open(os.Getenv("DATABASE_URL"), pgxdb.Options{})
	if err != nil {
		return err
	}
	store, err := postgres.New(db, postgres.Options{})
	if err != nil {
		return err
	}
	defer store.Close()
	limiter, err := ratelimit.NewLimiter(store, ratelimit.Limit{Prefix: "api", Events: 100,
		Window: time.Minute})
	if err != nil {
		return err
	}

	decision, err := limiter.Take(ctx, "user:123", 1)
	if err != nil {
		return err // without a decision; the hit may have been charged
	}
	if !decision.Allowed {
		return fmt.Errorf("refused; try again in %v", decision.RetryAfter)
	}
	return nil
}

// docs/programs.md: Several limits on one request.
func severalLimits(ctx context.Context, store ratelimit.Store) error {
	perUser := &ratelimit.Limit{Prefix: "user", Events: 100, Window: time.Minute}
	overall := &ratelimit.Limit{Prefix: "all", Algorithm: ratelimit.TokenBucket, Events: 5000,
		Window: time.Minute}

	hits := []ratelimit.Hit{
		{Limit: perUser, Key: "user:123", Cost: 1},
		{Limit: overall, Key: "everyone", Cost: 1},
	}
	decisions := make([]ratelimit.Decision, len(hits))
	if err := store.Take(ctx, 250*time.Millisecond, hits, decisions); err != nil {
		return err
	}
	allowed := decisions[0].Allowed && decisions[1].Allowed
	fmt.Println(allowed)
	return nil
}

// docs/programs.md: A middleware for net/http.
func middleware(store ratelimit.Store, limit *ratelimit.Limit) (func(http.Handler) http.Handler, error) {
	limited, err := httplimit.New(store, httplimit.Options{
		Hits: func(r *http.Request) []ratelimit.Hit {
			return []ratelimit.Hit{{Limit: limit, Key: r.Header.Get("X-API-Key"), Cost: 1, Secret: true}}
		},
	})
	return limited, err
}
