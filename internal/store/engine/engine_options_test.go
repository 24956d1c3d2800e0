package engine_test

import (
	"math"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// New refuses a missing DB and options out of range, with an error that names the field.
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
		_, err := engine.New(test.db, test.options)
		if conformance.FieldOf(err) != test.field {
			t.Errorf("New: error %v, want a FieldError for %s", err, test.field)
		}
	}
}
