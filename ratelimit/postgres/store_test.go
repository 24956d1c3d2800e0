package postgres_test

import (
	"errors"
	"math"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

func TestConformance(t *testing.T) {
	for name, open := range drivers.All {
		t.Run(name, func(t *testing.T) {
			conformance.Store(t, func(t testing.TB) ratelimit.Store {
				return newStore(t, open(t, cluster.Open(t)), postgres.Options{OnError: func(err error) { t.Errorf("reported: %v", err) }})
			})
		})
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	for field, o := range map[string]postgres.Options{
		"db":                 {},
		"Workers":            {Workers: -1},
		"CleanupProbability": {CleanupProbability: math.NaN()},
	} {
		var db postgres.DB
		if field != "db" {
			db = &fakeDB{}
		}
		var wrong *ratelimit.FieldError
		if store, err := postgres.New(db, o); store != nil || !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
