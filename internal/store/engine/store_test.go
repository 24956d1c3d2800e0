package engine_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

func TestOptionsOutOfRange(t *testing.T) {
	for field, o := range map[string]engine.Options{
		"db":                 {},
		"Workers":            {Workers: -1},
		"CleanupProbability": {CleanupProbability: math.NaN()},
	} {
		var db pgdb.DB
		if field != "db" {
			db = &fakeDB{}
		}
		var wrong *ratelimit.FieldError
		if store, err := engine.New(db, o); store != nil || !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// changing is a store for limits that a test changes.
type changing struct {
	ratelimit.Store
	change func(l *ratelimit.Limit)

	mu     sync.Mutex
	limits map[*ratelimit.Limit]*ratelimit.Limit // those of the test, and the changed ones
}

func (c *changing) changed(hits []ratelimit.Hit) []ratelimit.Hit {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := append([]ratelimit.Hit(nil), hits...)
	for i := range all {
		l := all[i].Limit
		if l != nil && c.limits[l] == nil {
			other := *l
			c.change(&other)
			c.limits[l] = &other
		}
		all[i].Limit = c.limits[l]
	}
	return all
}

func (c *changing) Take(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit,
	decisions []ratelimit.Decision) error {
	return c.Store.Take(ctx, timeout, c.changed(hits), decisions)
}

func (c *changing) Reset(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit) error {
	return c.Store.Reset(ctx, timeout, c.changed(hits))
}
