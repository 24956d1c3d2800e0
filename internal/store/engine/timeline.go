package engine

import (
	"encoding/binary"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/results"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// past is the history of the counters that a process has seen. The zero value has seen none. A server may get
// another address when a standby takes over, so servers are told apart by the identifiers of their systems.
type past struct {
	moves bool // the counters may move to another system, with all that was charged; does not change

	mu      sync.Mutex         // guards what follows
	systems map[string]history // by identifier; only the latest one if the counters do not move
	at      time.Time          // when the latest was read
}

// history is what the server of a system said.
type history struct {
	timeline string
	position int64 // in the write-ahead log
}

// read reads the result of timeline.SQL, and reports whether the counters may lack what this process
// has charged: the server has another history now, or has gone back in its own. If the role may not
// call these functions, nothing is noticed. An answer to a statement that was sent before another answer came says
// nothing.
func (p *past) read(read *pgdb.Statement, sent time.Time) bool {
	columns, err := results.Columns(read.Result)
	if read.Err != nil || err != nil || len(columns) != 2 || len(columns[1]) != 8 {
		return false
	}
	fields := strings.Fields(string(columns[0]))
	if len(fields) != 2 {
		return false
	}
	system := fields[0]
	now := history{timeline: fields[1], position: int64(binary.BigEndian.Uint64(columns[1]))}
	p.mu.Lock()
	defer p.mu.Unlock()
	if sent.Before(p.at) {
		return false
	}
	before, known := p.systems[system]
	lost := known && (now.timeline != before.timeline || now.position < before.position)
	if !known && !p.moves {
		lost = len(p.systems) > 0
		p.systems = nil
	}
	if p.systems == nil {
		p.systems = map[string]history{}
	}
	p.systems[system] = now
	p.at = time.Now()
	return lost
}

// SeeTimeline implements chain.Store.
func (s *Store) SeeTimeline(read *pgdb.Statement, sent time.Time) {
	if s.past.read(read, sent) {
		s.forgetLost()
	}
}

// forgetLost forgets what the process knows of counters that may lack its charges: no unit of a lease
// is used or given back, and no refusal is believed.
func (s *Store) forgetLost() {
	if s.engine.leases != nil {
		lease.Void(s.engine.leases.Set)
	}
	s.engine.blocked.ClearAll()
}
