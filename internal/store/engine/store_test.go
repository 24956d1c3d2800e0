package engine_test

import (
	"errors"
	"math"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

func TestOptionsOutOfRange(t *testing.T) {
	for _, test := range []struct {
		db      pgdb.DB
		options engine.Options
		field   string
	}{
		{db: nil, field: "db"},
		{db: &fakeDB{}, options: engine.Options{Workers: -1}, field: "Workers"},
		{db: &fakeDB{}, options: engine.Options{CleanupProbability: math.NaN()}, field: "CleanupProbability"},
	} {
		var fieldErr *ratelimit.FieldError
		_, err := engine.New(test.db, test.options)
		if !errors.As(err, &fieldErr) || fieldErr.Field != test.field {
			t.Errorf("New: error %v, want a FieldError for %s", err, test.field)
		}
	}
}
