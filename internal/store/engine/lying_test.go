package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TestWrongAnswersAreErrors gives a store answers that no database should. No decision may
// come of them, nor a panic, nor a wait without end, be it for two requests of a hit each or
// for one of two hits.
func TestWrongAnswersAreErrors(t *testing.T) {
	const columns, none = "does not have the statement's columns", "no answer for a key"
	all := func(*pgdb.Statement) bool { return true }
	one := &pgdb.Statement{}
	addRow(one, grantedRow(1, 1, 1))
	row := one.Result
	two := &pgdb.Statement{}
	addRow(two, grantedRow(2, 1, 1))
	good := append(slices.Clone(row), two.Result...)
	panics := func(context.Context, []*pgdb.Statement) error { panic("oh no") }
	for name, test := range map[string]struct {
		answer answerFunc
		want   string
	}{
		"no rows":           {rows(), none},
		"too few rows":      {rows(grantedRow(1, 1, 1)), none},
		"one row twice":     {rows(grantedRow(2, 1, 1), grantedRow(2, 1, 1)), none},
		"slot 0":            {rows(grantedRow(0, 1, 1), grantedRow(2, 1, 1)), columns},
		"slot 3 of 2":       {rows(grantedRow(3, 1, 1), grantedRow(2, 1, 1)), columns},
		"slot -1":           {rows(grantedRow(-1, 1, 1)), columns},
		"no columns":        {rows(nil), columns},
		"a column too few":  {rows(grantedRow(1, 1, 1)[:5], grantedRow(2, 1, 1)[:5]), columns},
		"one too many":      {rows(append(grantedRow(1, 1, 1), nil)), columns},
		"all NULL":          {rows(make([][]byte, 6)), columns},
		"half a column":     {raw(2, good[:len(good)-6]), columns},
		"half a length":     {raw(2, good[:len(good)-10]), columns},
		"a byte more":       {raw(2, append(slices.Clone(good), 0)), columns},
		"a row not counted": {raw(1, good), columns},
		"in another order":  {raw(2, append(slices.Clone(two.Result), row...)), ""},
		"right":             {raw(2, good), ""},
		"an error of one":   {failing("XX000", "out of paper", all), "out of paper"},
		"an error of all":   {failWith(errors.New("no line")), "no line"},
		"a panic":           {panics, "panic: oh no"},
		"always a deadlock": {failing("40P01", "deadlock detected", all), "deadlock detected"},
		"never returns":     {hang, ratelimit.ErrTimeout.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { checkAnswer(t, test.answer, test.want) })
		})
	}
}

// checkAnswer fails unless calls fail with a text, or pass if it is "".
func checkAnswer(t *testing.T, answer answerFunc, want string) {
	for _, calls := range [][]*batch.Call{{callFor(false, fakeHits("a", "b")...)},
		{callFor(false, fakeHits("a")...), callFor(false, fakeHits("b")...)}} {
		store := newStore(t, &fakeDB{answer: answer}, engine.Options{CleanupProbability: -1})
		store.DecideBatch(calls)
		failed := false
		for _, c := range calls {
			if c.Err == nil && (len(c.Decisions) != len(c.Hits) || !allAllowed(c.Decisions)) ||
				strings.Contains(fmt.Sprint(c.Err), `"a"`) {
				t.Errorf("%v, %+v", c.Err, c.Decisions)
			}
			failed = failed || c.Err != nil && strings.Contains(c.Err.Error(), want)
		}
		if failed != (want != "") {
			t.Errorf("%d calls: %v, want %q", len(calls), calls[0].Err, want)
		}
		store.Close()
	}
}
