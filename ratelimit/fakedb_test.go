package ratelimit_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// fakeDB is a database that answers as a test tells it to. The tables are right.
type fakeDB struct {
	mu     sync.Mutex
	runs   int // of statements that decide
	execs  []string
	closed bool

	// answer does what DB.Run does. Nil is honest.
	answer func(ctx context.Context, statements []*ratelimit.Statement) error
}

func (d *fakeDB) Run(ctx context.Context, statements []*ratelimit.Statement) error {
	if strings.Contains(statements[0].SQL, "to_regclass") {
		return statements[0].Row([][]byte{{0, 0, 0, 1}})
	}
	d.mu.Lock()
	d.runs++
	d.mu.Unlock()
	if d.answer == nil {
		return honest(ctx, statements)
	}
	return d.answer(ctx, statements)
}

func (d *fakeDB) Exec(ctx context.Context, sql string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.execs = append(d.execs, sql)
	return nil
}

func (d *fakeDB) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}

func (d *fakeDB) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.runs
}

func int4(n int64) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }
func int8(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// fakeNow is the fake server's time, as a timestamptz.
var fakeNow = int8(800_000_000 * second)

// granted is the row that a statement of fixed windows returns for an item.
func grantedRow(slot, granted, count int64) [][]byte {
	return [][]byte{int4(slot), int8(granted), fakeNow, int8(count), nil, fakeNow}
}

// honest admits every hit on a fixed window.
func honest(_ context.Context, statements []*ratelimit.Statement) error {
	for _, s := range statements {
		s.Err, s.Code = nil, ""
		for i := range s.Args[2].([]string) {
			if s.Row == nil {
				continue
			}
			n := int64(0)
			if len(s.Args) > 3 {
				n = s.Args[3].([]int64)[i]
			}
			if err := s.Row(grantedRow(int64(i+1), n, n)); err != nil {
				s.Err = err
			}
		}
	}
	return nil
}

// rows answers each statement with the same rows.
func rows(all ...[][]byte) func(context.Context, []*ratelimit.Statement) error {
	return func(_ context.Context, statements []*ratelimit.Statement) error {
		for _, s := range statements {
			for _, row := range all {
				if err := s.Row(row); err != nil {
					s.Err = err
				}
			}
		}
		return nil
	}
}

var fakeLimit = &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 5, Window: time.Hour}

func fakeHits(keys ...string) []ratelimit.Hit {
	var hits []ratelimit.Hit
	for _, key := range keys {
		hits = append(hits, ratelimit.Hit{Limit: fakeLimit, Key: key, Cost: 1})
	}
	return hits
}

// TestLyingDatabase gives a store answers that no database should: no decision
// may come of them, nor a panic, nor a wait without end.
func TestLyingDatabase(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(context.Context, []*ratelimit.Statement) error
		want   string
	}{
		"no rows":          {rows(), "no answer for a key"},
		"too few rows":     {rows(grantedRow(1, 1, 1)), "no answer for a key"},
		"one row twice":    {rows(grantedRow(2, 1, 1), grantedRow(2, 1, 1)), "no answer for a key"},
		"slot 0":           {rows(grantedRow(0, 1, 1), grantedRow(2, 1, 1)), "does not have the statement's columns"},
		"slot 3 of 2":      {rows(grantedRow(3, 1, 1), grantedRow(2, 1, 1)), "does not have the statement's columns"},
		"slot -1":          {rows(grantedRow(-1, 1, 1)), "does not have the statement's columns"},
		"no columns":       {rows(nil), "does not have the statement's columns"},
		"a column too few": {rows(grantedRow(1, 1, 1)[:5], grantedRow(2, 1, 1)[:5]), "does not have the statement's columns"},
		"one too many":     {rows(append(grantedRow(1, 1, 1), nil)), "does not have the statement's columns"},
		"all NULL":         {rows(make([][]byte, 6)), "does not have the statement's columns"},
		"an error of one": {func(_ context.Context, s []*ratelimit.Statement) error {
			s[0].Err, s[0].Code = errors.New("out of paper"), "XX000"
			return nil
		}, "out of paper"},
		"an error of all": {func(context.Context, []*ratelimit.Statement) error { return errors.New("no line") }, "no line"},
		"a panic":         {func(context.Context, []*ratelimit.Statement) error { panic("oh no") }, "panic: oh no"},
		"always deadlocks": {func(_ context.Context, s []*ratelimit.Statement) error {
			s[0].Err, s[0].Code = errors.New("deadlock detected"), "40P01"
			return nil
		}, "deadlock detected"},
		"never returns": {func(ctx context.Context, _ []*ratelimit.Statement) error { <-ctx.Done(); return ctx.Err() }, ratelimit.ErrTimeout.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			store := ratelimit.NewPostgres(&fakeDB{answer: test.answer}, ratelimit.PostgresOptions{CleanupProbability: -1})
			defer store.Close()
			started := time.Now()
			err := store.Take(context.Background(), 100*time.Millisecond, fakeHits("a", "b"), make([]ratelimit.Decision, 2))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Take: %v, want %q", err, test.want)
			}
			if strings.Contains(fmt.Sprint(err), `"a"`) {
				t.Errorf("the error names a key: %v", err)
			}
			if took := time.Since(started); took > 5*time.Second {
				t.Errorf("Take took %v", took)
			}
		})
	}
}

// TestLyingLog: a refusal that cannot be is no end of the queue.
func TestLyingLog(t *testing.T) {
	log := *fakeLimit
	log.Algorithm = ratelimit.SlidingLog
	refused := func(slot int64) [][]byte { return [][]byte{int4(slot), int8(0), fakeNow, nil} } // and has room
	db := &fakeDB{}
	store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
	defer store.Close()
	hits := fakeHits("a", "b")
	hits[0].Limit, hits[1].Limit = &log, &log
	for _, n := range []int{1, 2, 1} {
		db.answer = rows([][][]byte{refused(1), refused(2)}[:n]...)
		if err := store.Take(context.Background(), time.Minute, hits[:n], make([]ratelimit.Decision, n)); err == nil {
			t.Errorf("%d hits: no error", n)
		}
	}
}

// TestNonsenseInARow: values of the wrong size count as none.
func TestNonsenseInARow(t *testing.T) {
	row := grantedRow(1, 1, 1)
	row[3], row[4], row[5] = []byte{1}, []byte{}, []byte{1, 2, 3}
	store := ratelimit.NewPostgres(&fakeDB{answer: rows(row)}, ratelimit.PostgresOptions{CleanupProbability: -1})
	defer store.Close()
	if d := takeOne(t, store, fakeHits("a")[0]); !d.Allowed || d.Remaining != 5 {
		t.Errorf("%+v", d)
	}
}

// TestOneStatementFails: what fails concerns the requests in it alone, and a
// request in it and in another is given back what the other charged.
func TestOneStatementFails(t *testing.T) {
	var mu sync.Mutex
	var given []string
	db := &fakeDB{}
	db.answer = func(ctx context.Context, statements []*ratelimit.Statement) error {
		if err := honest(ctx, statements); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, s := range statements {
			switch {
			case strings.Contains(s.SQL, "rate_limit_durable"):
				s.Err, s.Code = errors.New("disk full"), "53100"
			case strings.Contains(s.SQL, "UPDATE rate_limit_ephemeral"):
				given = append(given, s.Args[2].([]string)...)
			}
		}
		return nil
	}
	store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
	defer store.Close()
	durable := *fakeLimit
	durable.Durable = true
	hits := append(fakeHits("both"), ratelimit.Hit{Limit: &durable, Key: "both", Cost: 1})
	requests := []*ratelimit.Request{{Hits: fakeHits("a")}, {Hits: hits[1:]}, {Hits: hits}}
	store.RunBatch(requests)
	if requests[0].Err != nil || !requests[0].Decisions[0].Allowed {
		t.Errorf("the request that has nothing to do with it: %+v", requests[0])
	}
	for _, r := range requests[1:] {
		if r.Err == nil || !strings.Contains(r.Err.Error(), "disk full") {
			t.Errorf("a request of the failed statement: %v", r.Err)
		}
	}
	if fmt.Sprint(given) != "[both]" {
		t.Errorf("given back: %q, want what the last request was charged besides", given)
	}
	// A refund that fails is not a decision either.
	err := store.Take(context.Background(), time.Second, []ratelimit.Hit{{Limit: &durable, Key: "k", Cost: -1}}, make([]ratelimit.Decision, 1))
	if err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("a refund that failed: %v", err)
	}
}

// TestRefundFails: only the refund of a hit that gives back fails, not the look
// that follows it.
func TestRefundFails(t *testing.T) {
	db := &fakeDB{}
	db.answer = func(ctx context.Context, statements []*ratelimit.Statement) error {
		if err := honest(ctx, statements); err != nil {
			return err
		}
		for _, s := range statements {
			if strings.Contains(s.SQL, "UPDATE rate_limit_ephemeral") {
				s.Err, s.Code = errors.New("disk full"), "53100"
			}
		}
		return nil
	}
	store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
	defer store.Close()
	err := store.Take(context.Background(), time.Second, []ratelimit.Hit{{Limit: fakeLimit, Key: "k", Cost: -1}}, make([]ratelimit.Decision, 1))
	if err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("a refund that failed: %v", err)
	}
}

// TestLostStatementsRunAgain: a statement that lost against another transaction
// runs again, and only that.
func TestLostStatementsRunAgain(t *testing.T) {
	for _, code := range []string{"40001", "40P01"} {
		tries := map[string]int{}
		db := &fakeDB{}
		db.answer = func(ctx context.Context, statements []*ratelimit.Statement) error {
			if err := honest(ctx, statements); err != nil {
				return err
			}
			for _, s := range statements {
				table := "ephemeral"
				if strings.Contains(s.SQL, "rate_limit_durable") {
					table = "durable"
				}
				if tries[table]++; table == "durable" && tries[table] < 3 {
					s.Err, s.Code = errors.New("lost"), code
				}
			}
			return nil
		}
		store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
		durable := *fakeLimit
		durable.Durable = true
		decisions := make([]ratelimit.Decision, 2)
		err := store.Take(context.Background(), 10*time.Second, append(fakeHits("a"), ratelimit.Hit{Limit: &durable, Key: "a", Cost: 1}), decisions)
		if err != nil || !decisions[0].Allowed || !decisions[1].Allowed {
			t.Errorf("%s: %v, %+v", code, err, decisions)
		}
		if tries["durable"] != 3 || tries["ephemeral"] != 1 {
			t.Errorf("%s: tried %v, want the lost one 3 times and the other once", code, tries)
		}
		store.Close()
	}
}

// TestCloseGivesBack: what a refused request was charged is given back before the
// connections go; a database that does not answer keeps Close waiting only so long.
func TestCloseGivesBack(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		db := &fakeDB{}
		given := false
		release := make(chan struct{})
		db.answer = func(ctx context.Context, statements []*ratelimit.Statement) error {
			if !strings.Contains(statements[0].SQL, "UPDATE rate_limit_ephemeral") {
				return rows(grantedRow(1, 1, 1), grantedRow(2, 0, 5))(ctx, statements)
			}
			if hangs {
				<-release
			}
			time.Sleep(20 * time.Millisecond)
			db.mu.Lock()
			defer db.mu.Unlock()
			given = !db.closed
			return nil
		}
		store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
		if err := store.Take(context.Background(), time.Minute, fakeHits("a", "b"), make([]ratelimit.Decision, 2)); err != nil {
			t.Fatal(err)
		}
		started := time.Now()
		store.Close()
		took := time.Since(started)
		close(release)
		db.mu.Lock()
		if given == hangs || !db.closed || hangs && (took < 900*time.Millisecond || took > 10*time.Second) {
			t.Errorf("hangs %v: given back %v, closed %v after %v", hangs, given, db.closed, took)
		}
		db.mu.Unlock()
	}
}

// TestForsaken ends the contexts of callers while their batch is under way, and
// at its very end: what they are told is theirs, whatever the batch says later.
func TestForsaken(t *testing.T) {
	for i := 0; i < 300; i++ {
		ctx, cancel := context.WithCancelCause(context.Background())
		gone := fmt.Errorf("gone %d", i)
		db := &fakeDB{}
		var store *ratelimit.Postgres
		db.answer = func(c context.Context, statements []*ratelimit.Statement) error {
			cancel(gone)
			if i%3 == 0 {
				time.Sleep(time.Millisecond)
			}
			return honest(c, statements)
		}
		store = ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
		d := []ratelimit.Decision{{Limit: 77}}
		err := store.Take(ctx, 10*time.Second, fakeHits("a"), d)
		switch {
		case err == nil && (!d[0].Allowed || d[0].Limit != 5):
			t.Fatalf("no error, and the decision %+v", d[0])
		case err != nil && (!errors.Is(err, gone) || d[0].Limit != 77):
			t.Fatalf("the caller was told %v, and the decision %+v", err, d[0])
		}
		store.Close()
	}
}
