package postgres

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/results"
)

// past is the history of a server that a process has seen. The zero value has seen none.
type past struct {
	server   string // system identifier and timeline
	position int64  // the last one in the write-ahead log
}

// read reads the result of timeline.SQL, and reports whether the counters may lack what this process
// has charged: the server has another history now, or has gone back in its own. If the role may not
// call these functions, nothing is noticed.
func (p *past) read(read *Statement) bool {
	columns, err := results.Columns(read.Result)
	if read.Err != nil || err != nil || len(columns) != 2 || len(columns[1]) != 8 {
		return false
	}
	now := past{server: string(columns[0]), position: int64(binary.BigEndian.Uint64(columns[1]))}
	lost := p.server != "" && (now.server != p.server || now.position < p.position)
	*p = now
	return lost
}

// forgetLost forgets what the process knows of counters that may lack its charges: no unit of a lease
// is used or given back, and no refusal is believed.
func (s *Store) forgetLost() {
	if s.engine.leases != nil {
		lease.Void(s.engine.leases)
	}
	s.engine.blocked.clearAll()
}

// clearAll forgets all rows.
func (b *blocked) clearAll() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	sequence := atomic.AddInt64(&b.sequence, 1)
	for i := range b.cleared {
		b.cleared[i] = sequence
	}
	b.rows = map[lease.RowID]*blockedRow{}
}
