package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// A wrong result causes an error of at least one request. The error says what is wrong, and does not contain
// the key. The store does not panic or wait forever. A right result, with its rows in any order, causes no
// error. checkAnswer sends each result for two requests of one hit, and for one request of two hits.
func TestOnlyWrongAnswersAreErrors(t *testing.T) {
	const columns, none = "does not have the statement's columns", "no answer for a key"
	all := func(*pgdb.Statement) bool { return true }
	first, second := &pgdb.Statement{}, &pgdb.Statement{}
	addRow(first, windowRow(1, 1, 1)...)
	addRow(second, windowRow(2, 1, 1)...)
	bothRows := append(slices.Clone(first.Result), second.Result...)
	for name, test := range map[string]struct {
		answer answerFunc
		want   string
	}{
		"no rows":           {answerRows(), none},
		"too few rows":      {answerRows(windowRow(1, 1, 1)), none},
		"one row twice":     {answerRows(windowRow(2, 1, 1), windowRow(2, 1, 1)), none},
		"slot 0":            {answerRows(windowRow(0, 1, 1), windowRow(2, 1, 1)), columns},
		"slot 3 of 2":       {answerRows(windowRow(3, 1, 1), windowRow(2, 1, 1)), columns},
		"no columns":        {answerRows(nil), columns},
		"a column too few":  {answerRows(windowRow(1, 1, 1)[:5], windowRow(2, 1, 1)[:5]), columns},
		"one too many":      {answerRows(append(windowRow(1, 1, 1), nil)), columns},
		"all NULL":          {answerRows(make([][]byte, 6)), columns},
		"half a column":     {answerBytes(2, bothRows[:len(bothRows)-6]), columns},
		"half a length":     {answerBytes(2, bothRows[:len(bothRows)-10]), columns},
		"a byte more":       {answerBytes(2, append(slices.Clone(bothRows), 0)), columns},
		"a row not counted": {answerBytes(1, bothRows), columns},
		"in another order":  {answerBytes(2, append(slices.Clone(second.Result), first.Result...)), ""},
		"right":             {answerBytes(2, bothRows), ""},
		"always a deadlock": {failWhere("40P01", "deadlock detected", all), "deadlock detected"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { checkAnswer(t, test.answer, test.want) })
		})
	}
}

// checkAnswer checks that a call fails with an error that contains want, or if want is "", that no call
// fails. A call that does not fail must be allowed. No error may have a key.
func checkAnswer(t *testing.T, answer answerFunc, want string) {
	for _, calls := range [][]*batch.Call{{newCall(false, fakeHits("a", "b")...)},
		{newCall(false, fakeHits("a")...), newCall(false, fakeHits("b")...)}} {
		store := newEngine(t, &fakeDB{answer: answer}, engine.Options{CleanupProbability: -1})
		store.DecideBatch(calls)
		failed := false
		var failures []error
		for _, c := range calls {
			if c.Err == nil && (len(c.Decisions) != len(c.Hits) || !allAllowed(c.Decisions)) {
				t.Errorf("got %+v, want all allowed", c.Decisions)
			}
			if strings.Contains(fmt.Sprint(c.Err), `"a"`) {
				t.Errorf("got the error %v, want one without the key", c.Err)
			}
			failures = append(failures, c.Err)
			failed = failed || c.Err != nil && strings.Contains(c.Err.Error(), want)
		}
		if failed != (want != "") {
			t.Errorf("%d calls: errors %v, want %q", len(calls), failures, want)
		}
		store.Close()
	}
}
