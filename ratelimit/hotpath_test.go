package ratelimit

import (
	"fmt"
	"testing"
	"time"
)

// batchSize is how many calls the functions below are given, where they take many.
const batchSize = 64

// hotPath is what runs for each decision or batch, alone, and how much each run
// may allocate. It is measured by BenchmarkHotPath and held by TestAllocations.
var hotPath = []struct {
	name    string
	most    float64 // allocations a run
	prepare func() func()
}{
	{"StoredKey", 0, func() func() {
		return func() { StoredKey("10.1.2.3") }
	}},
	{"begin", 0, func() func() {
		calls := hotCalls()
		return func() { begin(calls[:1]) }
	}},
	{"newCall and outcome", 0, func() func() {
		p := NewPostgres(nil, PostgresOptions{})
		hits, decisions := []Hit{{Limit: hotLimits[0], Key: "k", Cost: 1}}, make([]Decision, 1)
		return func() { _ = outcome(p, p.newCall(hits, false), decisions) }
	}},
	// A batch's statement and its arguments, each an interface.
	{"plan a batch", 8, func() func() {
		calls, texts := hotCalls(), newStatements()
		return func() {
			p := newPlan()
			addCalls(p, calls)
			p.write(texts, 0)
			p.free()
		}
	}},
	{"take in a batch's rows", 0, func() func() {
		p := newPlan()
		addCalls(p, hotCalls())
		statement := p.write(newStatements(), 0)[0]
		rows := hotRows()
		return func() {
			for _, row := range rows {
				if err := statement.Row(row); err != nil {
					panic(err)
				}
			}
			p.close()
		}
	}},
	// The call that would give back.
	{"conclude a batch", 1, func() func() {
		store, p, calls := NewPostgres(nil, PostgresOptions{}), newPlan(), hotCalls()
		addCalls(p, calls)
		statement := p.write(newStatements(), 0)[0]
		for _, row := range hotRows() {
			if err := statement.Row(row); err != nil {
				panic(err)
			}
		}
		p.close()
		q, f, batch := &Queue{}, &flight{}, make([]*Call, batchSize)
		return func() {
			copy(batch, calls)
			store.conclude(q, f, batch, time.Time{}, 0)
			for _, c := range calls {
				<-c.done
				c.Decisions = c.Decisions[:0]
			}
		}
	}},
	{"refuse a blocked row", 0, func() func() {
		b, l := newBlocked(10, newClears()), hotLimits[0]
		id := rowKey{false, l.Prefix, "k"}
		refuser := &item{limit: l, n: 1, row: row{count: l.Events, start: 1_700_000_000_000_000}, now: 1_700_000_000_000_000, cost: 1}
		refused := &Call{places: []place{{item: refuser}}, Decisions: []Decision{{RetryAfter: time.Hour}}}
		b.note(id, b.learn(refused, 0), 0)
		return func() {
			if _, known := refuses(b, id, l, 1, b.clock()); !known {
				panic("it is not known")
			}
		}
	}},
	{"look, each algorithm", 0, func() func() {
		var items []*item
		for _, l := range hotLimits {
			items = append(items, &item{limit: l, now: 1_700_000_000_000_000, row: row{
				count: 3, prevCount: 4, start: 1_700_000_000_000_000 - 1, tokens: 3, hasTokens: true, refill: 1_700_000_000_000_000,
			}})
		}
		return func() {
			for i := range items {
				lookAll(items[i : i+1])
			}
		}
	}},
}

// hotLimits are limits of each algorithm.
var hotLimits = func() []*Limit {
	var limits []*Limit
	for a := SlidingWindow; a <= GCRA; a++ {
		limits = append(limits, &Limit{Prefix: a.String(), Algorithm: a, Events: 1000, Window: time.Minute})
	}
	return limits
}()

// hotCalls are calls of one hit on different keys, ready for a batch.
func hotCalls() []*Call {
	var calls []*Call
	for i := range batchSize {
		c := NewCall()
		c.Hits = []Hit{{Limit: hotLimits[0], Key: fmt.Sprint("10.1.2.", i), Cost: 1}}
		calls = append(calls, c)
	}
	begin(calls)
	return calls
}

// hotRows are the rows that a statement returns for hotCalls: slot, granted, now,
// count, prev_count, window_start.
func hotRows() [][][]byte {
	now := []byte{0, 2, 0xd0, 0, 0, 0, 0, 0}
	var rows [][][]byte
	for i := range batchSize {
		slot := []byte{0, 0, 0, 0, 0, 0, 0, byte(i + 1)}
		one := []byte{0, 0, 0, 0, 0, 0, 0, 1}
		rows = append(rows, [][]byte{slot, one, now, one, one, now})
	}
	return rows
}

func BenchmarkHotPath(b *testing.B) {
	for _, f := range hotPath {
		b.Run(f.name, func(b *testing.B) {
			run := f.prepare()
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
	}
}

// TestAllocations fails where a decision comes to allocate more than it did.
func TestAllocations(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates; make test runs this without it, too")
	}
	for _, f := range hotPath {
		run := f.prepare()
		run() // what is allocated once
		if n := testing.AllocsPerRun(200, run); n > f.most {
			t.Errorf("%s: %v allocations, want %v at most", f.name, n, f.most)
		}
	}
}
