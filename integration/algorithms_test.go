package integration

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// quota is the full quota of every limit in algorithms.
const quota = 100

// algorithms are all algorithms, each with a limit of 100. No quota comes back before rest
// has passed, so tests must take less time.
var algorithms = []struct {
	name, limit string
	rest        time.Duration // from the first hit on
}{
	{"sliding_window", "100 1m", time.Minute},
	{"fixed_window", "100 1m", time.Minute},
	{"token_bucket", "100 1m", time.Minute},
	{"sliding_log", "100 1m", time.Minute},
	{"gcra", "100 2h", 72 * time.Second}, // one comes back every 72 s
}

// TestAlgorithmsAreAllHere compares the list above with package ratelimit. in_flight, which counts no quota, has
// tests of its own.
func TestAlgorithmsAreAllHere(t *testing.T) {
	var names []string
	for _, a := range algorithms {
		names = append(names, a.name)
	}
	names = append(names, "in_flight")
	_, err := ratelimit.ParseAlgorithm("no such")
	var field *ratelimit.FieldError
	if !errors.As(err, &field) {
		t.Fatalf("ParseAlgorithm: %v", err)
	}
	if want := "one of " + strings.Join(names, ", "); field.Want != want {
		t.Errorf("package ratelimit has %s; these tests have %s", field.Want, want)
	}
}

// tables are the two tables, as a configuration chooses between them.
var tables = []struct {
	name    string
	durable bool
}{
	{"rate_limit_ephemeral", false},
	{"rate_limit_durable", true},
}

// forEachKind runs a test for each algorithm on each table. The test must end
// before the limit gives anything back.
func forEachKind(t *testing.T, test func(t *testing.T, algorithm, limit string, durable bool)) {
	for _, a := range algorithms {
		for _, table := range tables {
			t.Run(a.name+"/"+table.name, func(t *testing.T) {
				began := time.Now()
				test(t, a.name, a.limit, table.durable)
				if took := time.Since(began); took >= a.rest {
					t.Errorf("took %v: the limit %s gave back after %v, so the counts above may be wrong", took, a.limit, a.rest)
				}
			})
		}
	}
}
