package engine_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// simHolds holds what the server has of limits that reserve: the processes, the units that they hold, and the
// ledger.
type simHolds struct {
	names      map[int64]int64                   // the last renewal of each process, in microseconds
	held       map[lease.RowID]map[int64]int64   // the units that each process holds in a row
	ledger     map[string]map[lease.RowID]int64  // the charges of each settlement
	rolledBack map[string]bool                   // the settlements that a failover has undone
	settled    map[lease.RowID]int64             // the units that settlements have charged
	settling   string                            // pg_ratelimit.settled of the current transaction
	running    func(id lease.RowID) (held int64) // the least that running requests hold in a row
}

// simRepeated is simHolds.settling of a transaction in which only some settlements are new.
const simRepeated = "repeated"

func newSimHolds() simHolds {
	return simHolds{names: map[int64]int64{}, held: map[lease.RowID]map[int64]int64{},
		ledger: map[string]map[lease.RowID]int64{}, rolledBack: map[string]bool{},
		settled: map[lease.RowID]int64{}}
}

// readHolding returns entry i of a statement that reserves or settles.
func readHolding(s *pgdb.Statement, meaning *engine.Meaning, i int) simEntry {
	e := simEntry{id: lease.RowID{Durable: meaning.Durable, Key: s.Args[2].([]string)[i]}}
	if e.id.Prefix, _ = s.Args[1].(string); !meaning.Alike {
		e.id.Prefix = s.Args[1].([]string)[i]
	}
	for p, name := range meaning.Parameters {
		number, isScalar := s.Args[3+p].(int64)
		if numbers, _ := s.Args[3+p].([]int64); !isScalar && numbers != nil {
			number = numbers[i]
		}
		switch name {
		case "n":
			e.n = number
		case "quota":
			e.cost = number
		case "first":
			e.process = number
		case "held":
			e.held = number
		case "sums":
			for _, sum := range strings.Split(strings.Trim(s.Args[3+p].([]string)[i], "{}"), ",") {
				n, _ := strconv.ParseInt(sum, 10, 64)
				e.sums = append(e.sums, n)
			}
		}
	}
	return e
}

// isAlive reports whether a process is alive.
func (s *simServer) isAlive(process int64) bool {
	const second = 1_000_000
	age := simNow() - s.names[process]
	return age <= 10*second && age >= -10*second
}

// live returns the units that processes hold in a row, and their sum, without processes that have ended.
func (s *simServer) live(id lease.RowID) (pairs map[int64]int64, sum int64) {
	pairs = map[int64]int64{}
	for process, units := range s.held[id] {
		if s.isAlive(process) {
			pairs[process] = units
			sum += units
		}
	}
	return pairs, sum
}

// reservedRow returns a row and its limit with the quota of an entry, and records how to undo a change.
func (s *simServer) reservedRow(e *simEntry) (*ratelimit.Limit, *algorithm.Row) {
	limit := *s.limits[e.id.Prefix]
	r := s.row(e.id)
	before, pairs, count := copyRow(r), maps.Clone(s.held[e.id]), len(s.windows[e.id])
	s.recordChange(e.id.Durable, func() {
		*r = before
		s.held[e.id] = pairs
		s.windows[e.id] = s.windows[e.id][:count]
	})
	return &limit, r
}

// reserve executes a statement that reserves or reads, and reports whether any row granted less than
// requested.
func (s *simServer) reserve(st *simStatement, a *pgdb.Statement) bool {
	partial := false
	for i := range st.entries {
		e := &st.entries[i]
		l, r := s.reservedRow(e)
		d := algorithm.Of(l)
		pairs, held := s.live(e.id)
		if least := s.running(e.id); held < least {
			s.violations = append(s.violations, fmt.Sprintf(
				"at %v running requests hold at least %d units of %s, and their processes %d",
				time.Duration(s.now), least, e.id.Key, held))
		}
		n := int64(0)
		r.Held = held
		if st.meaning.Kind == "take" {
			if l.Events = e.cost; r.Start == 0 {
				d.Charge(l, r, simNow(), 0, 1) // begin a window
			}
			for free, _ := d.Peek(l, r, simNow()); n < e.n && s.isAlive(e.process) && e.sums[n] < free; {
				n++
			}
			pairs[e.process] += e.sums[n]
			r.Held = held + e.sums[n]
			s.held[e.id] = pairs
			partial = partial || st.meaning.AllOrNothing && n < e.n
		}
		l.Reserves = false
		addRow(a, append([][]byte{int8(int64(i + 1)), int8(n), simTime(simNow()), int8(r.Held)},
			simColumns(algorithm.Of(l), r)...)...)
	}
	return partial
}

// settle executes a statement that settles.
func (s *simServer) settle(st *simStatement, a *pgdb.Statement) {
	if s.settling == simRepeated {
		failStatement(a, "22P02", engine.OnPurpose)
	}
	at, err := strconv.ParseInt(s.settling, 10, 64)
	if err != nil {
		return
	}
	for i := range st.entries {
		e := &st.entries[i]
		l, r := s.reservedRow(e)
		algorithm.Settle(l, r, at, e.n, 0, 0)
		s.recordWindow(e.id, r)
		s.settled[e.id] += e.n
		s.recordChange(true, func() { s.settled[e.id] -= e.n })
		pairs := maps.Clone(s.held[e.id])
		if pairs[e.process] > e.held {
			pairs[e.process] -= e.held
		} else {
			delete(pairs, e.process)
		}
		s.held[e.id] = pairs
	}
}

// executeLedger adds settlements to the ledger, and reports whether st does so.
func (s *simServer) executeLedger(st *simStatement, a *pgdb.Statement) bool {
	if st.sql != engine.LedgerSQL(false) && st.sql != engine.LedgerSQL(true) {
		return false
	}
	var bills []struct {
		ID      string
		Charges []struct {
			Prefix, Key string
			Durable     bool
			Units       int64
		}
	}
	if err := json.Unmarshal([]byte(st.args[2].(string)), &bills); err != nil {
		panic(err)
	}
	added := 0
	for _, bill := range bills {
		if s.ledger[bill.ID] != nil {
			continue
		}
		added++
		charges := map[lease.RowID]int64{}
		for _, c := range bill.Charges {
			charges[lease.RowID{Durable: c.Durable, Prefix: c.Prefix, Key: c.Key}] += c.Units
		}
		s.ledger[bill.ID] = charges
		s.recordChange(true, func() {
			delete(s.ledger, bill.ID)
			s.rolledBack[bill.ID] = s.replacing
		})
	}
	switch {
	case added == len(bills):
		s.settling = strconv.FormatInt(simNow(), 10)
	case added > 0:
		s.settling = simRepeated
	}
	addRow(a, []byte(s.settling))
	return true
}

// executeProcess starts, renews or ends a process, and reports whether st does so.
func (s *simServer) executeProcess(st *simStatement, a *pgdb.Statement) bool {
	set := func(process, seen int64) {
		before, known := s.names[process]
		s.names[process] = seen
		s.recordChange(true, func() {
			if s.names[process] = before; !known {
				delete(s.names, process)
			}
		})
	}
	is := func(part string) bool { return strings.Contains(st.sql, part) }
	switch now := simNow(); {
	case !is("rate_limit_processes") || !is("UPDATE"):
		return false
	case is("INSERT"):
		if ended := st.args[0].(int64); ended != 0 {
			set(ended, 0)
		}
		name := max(1, (now-simBorn.UnixMicro()+500_000)/1_000_000)
		for process := range s.names {
			name = max(name, process+1)
		}
		set(name, now)
		addRow(a, int8(name))
	case is("'-infinity'"):
		set(st.args[0].(int64), 0)
	default: // a renewal
		name := st.args[0].(int64)
		if now-s.names[name] <= 8_000_000 {
			set(name, now)
			addRow(a, int8(name))
		}
	}
	return true
}
