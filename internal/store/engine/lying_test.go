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

// A wrong result causes an error, and no decision, panic or endless wait. checkAnswer sends each result for
// two requests of one hit, and for one request of two hits.
func TestWrongAnswersAreErrors(t *testing.T) {
	const columns, none = "does not have the statement's columns", "no answer for a key"
	all := func(*pgdb.Statement) bool { return true }
	one := &pgdb.Statement{}
	addRow(one, grantedRow(1, 1, 1)...)
	row := one.Result
	two := &pgdb.Statement{}
	addRow(two, grantedRow(2, 1, 1)...)
	good := append(slices.Clone(row), two.Result...)
	panics := func(context.Context, []*pgdb.Statement) error { panic("oh no") }
	for name, test := range map[string]struct {
		answer answerFunc
		want   string
	}{
		"no rows":           {answerRows(), none},
		"too few rows":      {answerRows(grantedRow(1, 1, 1)), none},
		"one row twice":     {answerRows(grantedRow(2, 1, 1), grantedRow(2, 1, 1)), none},
		"slot 0":            {answerRows(grantedRow(0, 1, 1), grantedRow(2, 1, 1)), columns},
		"slot 3 of 2":       {answerRows(grantedRow(3, 1, 1), grantedRow(2, 1, 1)), columns},
		"slot -1":           {answerRows(grantedRow(-1, 1, 1)), columns},
		"no columns":        {answerRows(nil), columns},
		"a column too few":  {answerRows(grantedRow(1, 1, 1)[:5], grantedRow(2, 1, 1)[:5]), columns},
		"one too many":      {answerRows(append(grantedRow(1, 1, 1), nil)), columns},
		"all NULL":          {answerRows(make([][]byte, 6)), columns},
		"half a column":     {answerBytes(2, good[:len(good)-6]), columns},
		"half a length":     {answerBytes(2, good[:len(good)-10]), columns},
		"a byte more":       {answerBytes(2, append(slices.Clone(good), 0)), columns},
		"a row not counted": {answerBytes(1, good), columns},
		"in another order":  {answerBytes(2, append(slices.Clone(two.Result), row...)), ""},
		"right":             {answerBytes(2, good), ""},
		"an error of one":   {failWhere("XX000", "out of paper", all), "out of paper"},
		"an error of all":   {failWith(errors.New("no line")), "no line"},
		"a panic":           {panics, "panic: oh no"},
		"always a deadlock": {failWhere("40P01", "deadlock detected", all), "deadlock detected"},
		"never returns":     {hang, ratelimit.ErrTimeout.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { checkAnswer(t, test.answer, test.want) })
		})
	}
}

// checkAnswer fails the test unless a call fails with an error that contains want, or all calls pass if want
// is "".
func checkAnswer(t *testing.T, answer answerFunc, want string) {
	for _, calls := range [][]*batch.Call{{newCall(false, fakeHits("a", "b")...)},
		{newCall(false, fakeHits("a")...), newCall(false, fakeHits("b")...)}} {
		store := newEngine(t, &fakeDB{answer: answer}, engine.Options{CleanupProbability: -1})
		store.DecideBatch(calls)
		failed := false
		for _, c := range calls {
			if c.Err == nil && (len(c.Decisions) != len(c.Hits) || !allAllowed(c.Decisions)) {
				t.Errorf("got %+v, want all allowed", c.Decisions)
			}
			if strings.Contains(fmt.Sprint(c.Err), `"a"`) {
				t.Errorf("got the error %v, want one without the key", c.Err)
			}
			failed = failed || c.Err != nil && strings.Contains(c.Err.Error(), want)
		}
		if failed != (want != "") {
			t.Errorf("%d calls: error %v, want %q", len(calls), calls[0].Err, want)
		}
		store.Close()
	}
}
