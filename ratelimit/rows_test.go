package ratelimit_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// together is a DB that hands over the rows of every other statement together,
// as far as it may. So tests go both ways.
type together struct {
	ratelimit.DB
	turn   atomic.Int64
	handed atomic.Int64 // rows that went together
}

func (d *together) Run(ctx context.Context, statements []*ratelimit.Statement) error {
	for _, s := range statements {
		if s.Rows != nil && d.turn.Add(1)%2 == 0 {
			h := &held{d: d, s: s, row: s.Row}
			s.Row = h.take
			defer h.end()
		}
	}
	return d.DB.Run(ctx, statements)
}

// held are rows of a statement that go together.
type held struct {
	d     *together
	s     *ratelimit.Statement
	row   func([][]byte) error
	block []byte
	rows  int64
}

func (h *held) take(columns [][]byte) error {
	for _, column := range columns {
		if len(column) != 8 {
			if err := h.flush(); err != nil {
				return err
			}
			return h.row(columns)
		}
	}
	h.rows++
	for _, column := range columns {
		h.block = append(h.block, 0, 0, 0, 8)
		h.block = append(h.block, column...)
	}
	return nil
}

func (h *held) flush() error {
	if h.rows == 0 {
		return nil
	}
	h.d.handed.Add(h.rows)
	err := h.s.Rows(h.block)
	clear(h.block) // they are valid only during the call
	h.rows, h.block = 0, nil
	return err
}

func (h *held) end() {
	h.s.Row = h.row
	if err := h.flush(); err != nil && h.s.Err == nil {
		h.s.Err = err
	}
}

// TestRowsTogether: every way to count returns rows that may go together, but for
// the log, whose rows hold an array.
func TestRowsTogether(t *testing.T) {
	store, _ := openPostgres(t, ratelimit.PostgresOptions{CleanupProbability: -1, MaxBlockedKeys: ratelimit.WithoutBlocked})
	createTables(t, store)
	db := store.DB().(*together)
	for _, way := range ways {
		l := &ratelimit.Limit{Prefix: way, Events: 3, Window: time.Hour}
		var err error
		if l.Algorithm, err = ratelimit.ParseAlgorithm(way); err != nil {
			l = &ratelimit.Limit{Prefix: way, Algorithm: ratelimit.FixedWindow, Events: 3, Calendar: ratelimit.Year}
		}
		before := db.handed.Load()
		const requests, keys = 20, 7
		admitted := 0
		for range requests {
			hits, decisions := make([]ratelimit.Hit, keys), make([]ratelimit.Decision, keys)
			for i := range hits {
				hits[i] = ratelimit.Hit{Limit: l, Key: fmt.Sprint(i), Cost: 1}
			}
			if err := store.Take(context.Background(), 10*time.Second, hits, decisions); err != nil {
				t.Fatal(err)
			}
			for i, d := range decisions {
				if d.Allowed {
					admitted++
				}
				if d.Allowed != decisions[0].Allowed || d.Remaining != decisions[0].Remaining {
					t.Errorf("%s: key %d got %+v, another %+v", way, i, d, decisions[0])
				}
			}
		}
		if admitted != 3*keys {
			t.Errorf("%s: %d hits were admitted, want %d", way, admitted, 3*keys)
		}
		if n, want := db.handed.Load()-before, int64(requests/2*keys); way == "sliding_log" && n != 0 || way != "sliding_log" && n < want {
			t.Errorf("%s: %d rows went together, want %d", way, n, want)
		}
	}
}

// block is rows as one block: of an int or NULL it makes a bigint.
func block(all ...[][]byte) []byte {
	var b []byte
	for _, row := range all {
		for _, column := range row {
			if len(column) == 4 {
				column = int8(int64(int32(binary.BigEndian.Uint32(column))))
			}
			if column == nil {
				column = int8(0)
			}
			b = append(append(b, 0, 0, 0, 8), column...)
		}
	}
	return b
}

// TestLyingBlocks gives a store blocks that no DB should: no decision may come of
// them, nor a panic.
func TestLyingBlocks(t *testing.T) {
	good := block(grantedRow(1, 1, 1), grantedRow(2, 1, 1))
	for name, test := range map[string]struct {
		blocks [][]byte
		want   string
	}{
		"good":            {[][]byte{good}, ""},
		"in two":          {[][]byte{good[:72], good[72:]}, ""},
		"the other order": {[][]byte{block(grantedRow(2, 1, 1), grantedRow(1, 1, 1))}, ""},
		"empty":           {[][]byte{nil}, "no answer for a key"},
		"too few rows":    {[][]byte{good[:72]}, "no answer for a key"},
		"one row twice":   {[][]byte{good[:72], good[:72]}, "no answer for a key"},
		"slot 0":          {[][]byte{block(grantedRow(0, 1, 1))}, "does not have the statement's columns"},
		"slot 3 of 2":     {[][]byte{block(grantedRow(1, 1, 1), grantedRow(3, 1, 1))}, "does not have the statement's columns"},
		"slot -1":         {[][]byte{block(grantedRow(-1, 1, 1))}, "does not have the statement's columns"},
		"a column more":   {[][]byte{block(append(grantedRow(1, 1, 1), nil))}, "does not have the statement's columns"},
		"a column less":   {[][]byte{good[:60]}, "does not have the statement's columns"},
		"half a column":   {[][]byte{good[:70]}, "does not have the statement's columns"},
		"a byte more":     {[][]byte{good[:73]}, "does not have the statement's columns"},
	} {
		t.Run(name, func(t *testing.T) {
			answer := func(_ context.Context, statements []*ratelimit.Statement) error {
				for _, b := range test.blocks {
					if err := statements[0].Rows(b); err != nil {
						statements[0].Err = err
						return nil
					}
				}
				return nil
			}
			store := ratelimit.NewPostgres(&fakeDB{answer: answer}, ratelimit.PostgresOptions{CleanupProbability: -1})
			defer store.Close()
			decisions := make([]ratelimit.Decision, 2)
			err := store.Take(context.Background(), 10*time.Second, fakeHits("a", "b"), decisions)
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if test.want == "" && (err != nil || !decisions[0].Allowed || !decisions[1].Allowed) {
				t.Errorf("%v, %+v", err, decisions)
			}
		})
	}
}
