package engine_test

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// answerFunc implements DB.Run, with a context that ends after the timeout.
type answerFunc func(ctx context.Context, statements []*pgdb.Statement) error

// untilTimeout calls run with a context that ends after timeout. It returns the error of DB.Run for that of
// run.
func untilTimeout(ctx context.Context, timeout time.Duration, run func(ctx context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := run(limited)
	if errors.Is(err, pg.ErrBusy) {
		return pg.NotSent(ctx, err)
	}
	return pg.Outcome(ctx, err)
}

// fakeDB is a DB with results that a test determines. It reports that the tables exist.
type fakeDB struct {
	mu     sync.Mutex
	runs   int // the pipelines that neither check the tables nor probe the server
	probes int
	closed bool

	answer answerFunc // guarded by mu; nil is admit
	probe  answerFunc // for the prober; nil succeeds immediately
}

func (d *fakeDB) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	for _, s := range statements {
		s.Result, s.Rows, s.Err, s.Code = s.Result[:0], 0, nil, ""
	}
	d.mu.Lock()
	answer := d.answer
	switch {
	case statements[0].SQL == engine.ServerSQL:
		d.probes++
		answer = d.probe
		if answer == nil {
			answer = answerRows([][]byte{int4(1)})
		}
	case statements[0].SQL == schema.Locked:
		answer = func(_ context.Context, statements []*pgdb.Statement) error {
			addRow(statements[1], []byte(`{"number":1}`))
			return nil
		}
	default:
		d.runs++
		if answer == nil {
			answer = admit
		}
	}
	d.mu.Unlock()
	return untilTimeout(ctx, timeout, func(ctx context.Context) error { return answer(ctx, statements) })
}

func (d *fakeDB) Exec(context.Context, time.Duration, string) error { return nil }

func (d *fakeDB) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}

func (d *fakeDB) set(answer, probe answerFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer, d.probe = answer, probe
}

func (d *fakeDB) count() (runs, probes int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.runs, d.probes
}

func int4(n int64) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }
func int8(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// fakeNow is the time of the fake server, as a timestamptz: the start of this process.
var fakeNow = int8(time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Microseconds())

// windowRow returns the result row of a statement on a fixed window: of the hits of the entry slot, granted
// passed, and the window now counts count.
func windowRow(slot, granted, count int64) [][]byte {
	return [][]byte{int8(slot), int8(granted), fakeNow, int8(count), int8(0), fakeNow}
}

// addRow adds a row to a statement's result; nil columns are NULL.
func addRow(s *pgdb.Statement, columns ...[]byte) {
	for _, c := range columns {
		size := int64(len(c))
		if c == nil {
			size = -1
		}
		s.Result = append(append(s.Result, int4(size)...), c...)
	}
	s.Rows++
}

// isCheck reports whether a statement is the check: the last statement of a transaction of takes, which
// fails, and so rolls the transaction back, if a take granted too little.
func isCheck(s *pgdb.Statement) bool {
	return strings.Contains(s.SQL, "pg_ratelimit.short") && len(s.Args) == 0
}

// returnsRows reports whether a statement returns a row for each of its entries.
func returnsRows(s *pgdb.Statement) bool {
	return strings.Contains(s.SQL, "RETURNING ord") || strings.Contains(s.SQL, "LEFT JOIN")
}

// statementKeys returns the keys of the counters of a statement's entries.
func statementKeys(s *pgdb.Statement) []string {
	if len(s.Args) < 3 {
		return nil
	}
	return s.Args[2].([]string)
}

// admit admits every hit on a fixed window.
func admit(ctx context.Context, statements []*pgdb.Statement) error {
	return grantUpTo(func(_ string, n int64) int64 { return n })(ctx, statements)
}

// refuse refuses every hit.
func refuse(ctx context.Context, statements []*pgdb.Statement) error {
	return grantUpTo(func(string, int64) int64 { return 0 })(ctx, statements)
}

// grantUpTo answers takes on fixed windows: of n hits on a key, it grants quota(key, n). A row that refuses
// has the count of a full window, which is fakeLimit.Events. A transaction that grants too little is rolled
// back.
func grantUpTo(quota func(key string, n int64) int64) answerFunc {
	return func(_ context.Context, statements []*pgdb.Statement) error {
		start, short := 0, false
		for at, s := range statements {
			for i, key := range statementKeys(s) {
				if !returnsRows(s) {
					continue
				}
				n := int64(0)
				if len(s.Args) > 3 {
					n = s.Args[3].([]int64)[i]
				}
				grant, count := quota(key, n), n
				if grant < n || n == 0 && quota(key, 1) == 0 {
					short, count = true, 5
				}
				addRow(s, windowRow(int64(i+1), grant, count)...)
			}
			if s.Joined {
				continue
			}
			if isCheck(s) && short {
				for _, other := range statements[start:at] {
					other.Err = pgdb.ErrRolledBack
				}
				failStatement(s, "22P02", engine.OnPurpose)
			}
			start, short = at+1, false
		}
		return nil
	}
}

// answerRows adds the same rows to the result of each statement that returns rows, or has no arguments and is
// not a check.
func answerRows(rows ...[][]byte) answerFunc {
	return func(_ context.Context, statements []*pgdb.Statement) error {
		for _, s := range statements {
			for _, row := range rows {
				if returnsRows(s) || len(s.Args) == 0 && !isCheck(s) {
					addRow(s, row...)
				}
			}
		}
		return nil
	}
}

// hang returns no results before ctx ends.
func hang(ctx context.Context, _ []*pgdb.Statement) error {
	<-ctx.Done()
	return ctx.Err()
}

// failWith returns an answerFunc that fails every pipeline with err.
func failWith(err error) answerFunc {
	return func(context.Context, []*pgdb.Statement) error { return err }
}

var fakeLimit = &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 5, Window: time.Hour}

func fakeHits(keys ...string) []ratelimit.Hit {
	var hits []ratelimit.Hit
	for _, key := range keys {
		hits = append(hits, ratelimit.Hit{Limit: fakeLimit, Key: key, Cost: 1})
	}
	return hits
}
