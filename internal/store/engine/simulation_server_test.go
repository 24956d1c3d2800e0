package engine_test

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// simServer is a model of Postgres for stores and policies. A message, which has the statements of one
// DB.Run, takes effect at one moment. The Go steps of package algorithm change the rows, in place of SQL:
// TestSQLAndGoStepsAreEqual compares them.
type simServer struct {
	mu      sync.Mutex // guards all that follows
	limits  map[string]*ratelimit.Limit
	rows    map[lease.RowID]*algorithm.Row
	nodes   map[string]simNode
	windows map[lease.RowID][]simWindow // the windows in which the rows were charged

	outages   []simOutage // future outages
	timeline  int64
	replacing bool      // a standby takes over
	started   int64     // the start time of the server
	changes   int       // the number of changes of the policy
	now       int64     // the time of the current message, in nanoseconds of the simulation
	open      []simUndo // the changes of the current transaction
	// the recent changes of logged tables; empty unless a failover is still to come, in which the standby
	// lacks the last changes
	undo    []simUndo
	charges map[simHolder]int64
	charged map[lease.RowID]int64 // the units charged by takes
	// the units of messages that were lost, or that had a lost result
	maybeCharged map[lease.RowID]int64
	conflictRate float64  // see simPlan
	violations   []string // statements that no proxy should send
	simHolds              // what requests hold, and the ledger
	sent         []int    // the number of sent statements, by millisecond
	probes       []int    // the number of sent reads of the server's identity, by millisecond
}

// simNode is a row of the registry.
type simNode struct{ seen int64 }

// simWindow is the time at which a row was first changed in a window, and the start of the window. start is 0
// if the row was lost.
type simWindow struct{ at, start int64 }

// simUndo undoes a change.
type simUndo struct {
	at     int64
	logged bool
	undo   func()
}

// maxLag bounds the lag of a standby, in nanoseconds.
const maxLag = int64(500 * time.Millisecond)

func newSimServer(limits []*ratelimit.Limit, outages []simOutage) *simServer {
	s := &simServer{
		limits: map[string]*ratelimit.Limit{}, rows: map[lease.RowID]*algorithm.Row{},
		nodes:   map[string]simNode{},
		windows: map[lease.RowID][]simWindow{}, charges: map[simHolder]int64{},
		charged:      map[lease.RowID]int64{},
		maybeCharged: map[lease.RowID]int64{}, outages: outages, simHolds: newSimHolds(),
	}
	for _, l := range limits {
		s.limits[l.Prefix] = l
	}
	return s
}

// simStatement is a copy of a statement, because the store reuses the memory of statements.
type simStatement struct {
	sql     string
	meaning engine.Meaning // the meaning of a statement on rows
	joined  bool
	args    []any      // the arguments of a statement that is not on rows
	entries []simEntry // the entries of a statement on rows, or nil
}

// simEntry is one row of a statement.
type simEntry struct {
	id      lease.RowID
	n, cost int64 // the number of hits, and the units of each
	claim   int64 // the time of the decision to refund, in microseconds

	// The process that holds units, those of a settlement that ends, and the sums of a reservation.
	process, held int64
	sums          []int64
}

// readStatement returns a copy of a statement.
func readStatement(s *pgdb.Statement) simStatement {
	meaning, onRows := engine.Meanings()[s.SQL]
	read := simStatement{sql: s.SQL, meaning: meaning, joined: s.Joined}
	if !onRows {
		for _, arg := range s.Args {
			if texts, ok := arg.([]string); ok {
				arg = slices.Clone(texts)
			}
			read.args = append(read.args, arg)
		}
		return read
	}
	keys := s.Args[2].([]string)
	for i, key := range keys {
		if meaning.Reserves || meaning.Kind == "settle" {
			read.entries = append(read.entries, readHolding(s, &meaning, i))
			continue
		}
		e := simEntry{n: 1}
		e.id = lease.RowID{Durable: meaning.Durable, Key: key}
		if meaning.Alike {
			e.id.Prefix = s.Args[1].(string)
			e.n = s.Args[3].([]int64)[i]
			e.cost = s.Args[4].(int64)
		} else {
			e.id.Prefix = s.Args[1].([]string)[i]
		}
		switch {
		case meaning.Kind == "refund":
			e.cost = s.Args[3].([]int64)[i]
			e.claim = s.Args[7].([]int64)[i]
		case meaning.Kind == "take" && !meaning.Alike:
			e.n = s.Args[3].([]int64)[i]
			e.cost = s.Args[4].([]int64)[i]
		}
		read.entries = append(read.entries, e)
	}
	return read
}

// digest returns a number that is equal for statements with the same entries in any order, because a store
// ranges over maps.
func (s *simStatement) digest(c chance) uint64 {
	c = c.withText(s.sql)
	if s.entries == nil {
		for _, arg := range s.args {
			if texts, ok := arg.([]string); ok {
				arg = slices.Sorted(slices.Values(texts))
			}
			c = c.withText(fmt.Sprint(arg))
		}
		return uint64(c)
	}
	sum := uint64(0)
	for _, e := range s.entries {
		one := c.withText(e.id.Prefix).withText(e.id.Key).with(e.n, e.cost, e.claim)
		if e.process != 0 {
			one = one.with(e.process, e.held).with(e.sums...)
		}
		sum += uint64(one)
	}
	return sum
}

// run executes a message that arrives at a time, in nanoseconds of the simulation, and returns statements
// with the results.
func (s *simServer) run(proxy int, arrival int64, message []simStatement) []pgdb.Statement {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = arrival
	s.advance(arrival)
	answers := make([]pgdb.Statement, len(message))
	for from := 0; from < len(message); {
		to := from
		for message[to].joined {
			to++
		}
		to++
		s.runTransaction(proxy, message[from:to], answers[from:to])
		from = to
	}
	return answers
}

// recordSent counts statements that are sent at a time.
func (s *simServer) recordSent(at int64, message []simStatement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for int(at/1e6) >= len(s.sent) {
		s.sent = append(s.sent, make([]int, 1000)...)
		s.probes = append(s.probes, make([]int, 1000)...)
	}
	s.sent[at/1e6] += len(message)
	if message[0].sql == engine.ServerSQL {
		s.probes[at/1e6]++
	}
}

// simNow returns the time of the server, in microseconds.
func simNow() int64 { return time.Now().UnixMicro() }

// runTransaction executes statements that take effect together.
func (s *simServer) runTransaction(proxy int, statements []simStatement, answers []pgdb.Statement) {
	s.open = s.open[:0]
	s.settling = ""
	partial := false
	for i := range statements {
		st := &statements[i]
		switch {
		case st.entries == nil:
			s.executeOther(st, &answers[i], partial)
		case s.refuses(st, &answers[i]):
		case st.meaning.Kind == "settle":
			s.settle(st, &answers[i])
		case st.meaning.Reserves:
			partial = s.reserve(st, &answers[i]) || partial
		default:
			partial = s.executeOnRows(proxy, st, &answers[i]) || partial
		}
		if answers[i].Err == nil {
			continue
		}
		for _, c := range slices.Backward(s.open) {
			c.undo()
		}
		for j := range answers {
			if j != i {
				answers[j].Err = pgdb.ErrRolledBack
			}
		}
		return
	}
	if !s.failsOver() {
		return
	}
	for _, c := range s.open {
		if c.logged {
			s.undo = append(s.undo, c)
		}
	}
	if kept := s.undo[:0]; len(s.undo) > 10000 {
		for _, c := range s.undo {
			if s.now-c.at < 2*maxLag {
				kept = append(kept, c)
			}
		}
		s.undo = kept
	}
}

// simConflict is the error of a statement that waited too long for a lock, or that lost a conflict.
const simConflict = "another transaction has the row"

// refuses fails a share of the statements on rows because of another transaction.
func (s *simServer) refuses(st *simStatement, a *pgdb.Statement) bool {
	c := chance(s.now).with(int64(st.digest(0)))
	if c.float() >= s.conflictRate {
		return false
	}
	codes := []string{pg.LockNotAvailable, pg.SerializationFailure, pg.DeadlockDetected}
	failStatement(a, codes[c.with(3).intn(3)], simConflict)
	return true
}

// recordChange records how to undo a change.
func (s *simServer) recordChange(logged bool, undo func()) {
	s.open = append(s.open, simUndo{s.now, logged, undo})
}

// copyRow returns a copy of a row that shares no memory with it.
func copyRow(r *algorithm.Row) algorithm.Row {
	c := *r
	c.Hits = slices.Clone(r.Hits)
	return c
}

// row returns a row, which is blank if there was none.
func (s *simServer) row(id lease.RowID) *algorithm.Row {
	r := s.rows[id]
	if r == nil {
		r = &algorithm.Row{}
		s.rows[id] = r
	}
	return r
}

// executeOnRows executes a statement on rows, and reports whether any row granted less than requested.
func (s *simServer) executeOnRows(proxy int, st *simStatement, a *pgdb.Statement) bool {
	now := simNow()
	partial := false
	for i, e := range st.entries {
		l := s.limits[e.id.Prefix]
		if l == nil || l.Durable != e.id.Durable {
			s.violations = append(s.violations, "a row of an unknown limit: "+e.id.Prefix)
			return false
		}
		r := s.row(e.id)
		if st.meaning.Kind != "peek" {
			before, count := copyRow(r), len(s.windows[e.id])
			s.recordChange(e.id.Durable, func() {
				*r = before
				s.windows[e.id] = s.windows[e.id][:count]
			})
		}
		d := algorithm.Of(l)
		n := int64(0)
		switch st.meaning.Kind {
		case "take":
			n = d.Charge(l, r, now, e.n, e.cost)
			partial = partial || st.meaning.AllOrNothing && n < e.n
			s.recordWindow(e.id, r)
			s.recordUnits(proxy, e.id, n*e.cost)
			s.charged[e.id] += n * e.cost
			s.recordChange(e.id.Durable, func() { s.charged[e.id] -= n * e.cost })
		case "refund":
			d.Adjust(l, r, now, e.cost, e.claim)
			s.recordUnits(proxy, e.id, -e.cost)
			continue
		case "reset":
			*r = algorithm.Row{}
			continue
		}
		addRow(a, append([][]byte{int8(int64(i + 1)), int8(n), simTime(now)}, simColumns(d, r)...)...)
	}
	return partial
}

// simHolder is a proxy with charges on a row.
type simHolder struct {
	proxy int
	id    lease.RowID
}

// recordUnits records a proxy's charges on this timeline, less its refunds.
func (s *simServer) recordUnits(proxy int, id lease.RowID, units int64) {
	if !id.Durable || s.timeline == 0 {
		return
	}
	holder := simHolder{proxy, id}
	s.charges[holder] += units
	s.recordChange(true, func() { s.charges[holder] -= units })
	if n := s.charges[holder]; units < 0 && n < 0 {
		s.violations = append(s.violations,
			fmt.Sprintf("at %v proxy%d refunds %d units of %s that were charged on a lost server",
				time.Duration(s.now), proxy, -n, id.Key))
	}
}

// recordWindow records the window in which a row was charged.
func (s *simServer) recordWindow(id lease.RowID, r *algorithm.Row) {
	start := r.Start
	if r.HasTokens {
		start = r.Refill
	}
	if seen := s.windows[id]; start != 0 && (len(seen) == 0 || seen[len(seen)-1].start != start) {
		s.windows[id] = append(seen, simWindow{simNow(), start})
	}
}
