package postgres

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/results"
)

// timelineSQL returns the system identifier and the timeline of the server, and its position in the
// write-ahead log. A failover and a recovery to a point in time begin a new timeline. A copy of the
// files that was put back without one has an earlier position. On a standby it returns no row.
const timelineSQL = `SELECT system_identifier || ' ' || left(pg_walfile_name(pg_current_wal_lsn()), 8), (pg_current_wal_lsn() - '0/0')::bigint
FROM pg_control_system() WHERE NOT pg_is_in_recovery()`

// timeline is the history of a server that a process has seen. The zero value has seen none.
type timeline struct {
	mu       sync.Mutex // guards all that follows
	server   string     // system identifier and timeline
	position int64      // the last one in the write-ahead log
	at       time.Time  // when it was read
}

// read reads the result of timelineSQL, and reports whether the counters may lack what this process
// has charged: the server has another history now, or has gone back in its own. If the role may not
// call these functions, nothing is noticed. An answer to a statement that was sent before another answer came says nothing.
func (t *timeline) read(read *Statement, sent time.Time) bool {
	columns, err := results.Columns(read.Result)
	if read.Err != nil || err != nil || len(columns) != 2 || len(columns[1]) != 8 {
		return false
	}
	server := string(columns[0])
	position := int64(binary.BigEndian.Uint64(columns[1]))
	t.mu.Lock()
	defer t.mu.Unlock()
	if sent.Before(t.at) {
		return false
	}
	lost := t.server != "" && (server != t.server || position < t.position)
	t.server = server
	t.position = position
	t.at = time.Now()
	return lost
}

// seeTimeline reads the result of timelineSQL.
func (s *Store) seeTimeline(read *Statement, sent time.Time) {
	if s.timeline.read(read, sent) {
		s.forgetLost()
	}
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
