package engine_test

import (
	"errors"
	"math"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

func TestConformance(t *testing.T) {
	for name, open := range drivers.All {
		t.Run(name, func(t *testing.T) {
			conformance.Store(t, func(t testing.TB) ratelimit.Store {
				return newStore(t, open(t, cluster.Open(t)), engine.Options{OnError: func(err error) { t.Errorf("reported: %v", err) }})
			})
		})
	}
}

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
