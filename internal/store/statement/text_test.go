package statement_test

import (
	"regexp"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func TestNoStatementHasAPlaceholderLeft(t *testing.T) {
	definitions := algorithm.All()
	for a := ratelimit.SlidingWindow; a <= ratelimit.InFlight; a++ {
		for _, unit := range []ratelimit.Calendar{ratelimit.NoCalendar, ratelimit.Day} {
			limit := ratelimit.Limit{Algorithm: a, Calendar: unit, Reserves: true}
			if d := algorithm.Of(&limit); d != nil {
				definitions = append(definitions, d)
			}
		}
	}
	texts := statement.New(nil)
	sql := []string{texts.Cleanup(true, true), texts.Cleanup(false, false), texts.NextPrefix(true),
		texts.Ledger(true), texts.Index}
	for _, d := range definitions {
		for kind := statement.Charge; kind <= statement.Settle; kind++ {
			for bits := range 16 {
				sql = append(sql, texts.Of(statement.Key{Kind: kind, Definition: d, Durable: bits&1 != 0,
					Sync: bits&2 != 0, AllOrNothing: bits&4 != 0, Uniform: bits&8 != 0}).SQL)
			}
		}
	}
	for _, text := range sql {
		if left := regexp.MustCompile(`\{[a-z_]+\}`).FindString(text); left != "" {
			t.Fatalf("%s is left in %s", left, text)
		}
	}
}
