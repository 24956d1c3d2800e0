package engine

import (
	"context"
	"encoding/binary"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/results"
	"github.com/pgratelimit/pg-ratelimit/internal/core/timeline"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// past is the history of the counters that a process has seen. The zero value has seen none. A server may get
// another address when a standby takes over, so servers are told apart by the identifiers of their systems.
type past struct {
	part bool // Citus may move the counters to another system, with all that was charged; does not change

	mu      sync.Mutex         // guards what follows
	systems map[string]history // by identifier; only the latest one if the counters are not of a part
	at      time.Time          // when the latest was read
}

// history is what the server of a system said.
type history struct {
	timeline string
	position int64 // in the write-ahead log
}

// read reads the result of timeline.SQL, and reports whether the counters may lack what this process
// has charged: the server has another history now, or has gone back in its own. If the role may not
// call these functions, nothing is noticed. An answer to a statement that was sent before another answer came says nothing.
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
	if !known && !p.part {
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

// timelineTimeout is for one look at a timeline.
const timelineTimeout = 2 * time.Second

// startTimelines reads the timelines of the servers of the parts in the background, each without waiting for the
// others, and has the parts of a server with another history forget what may be lost.
func startTimelines(closing context.Context, p *parts) {
	r := p.routes
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, db := range r.servers {
		if !r.timelines[name] {
			r.timelines[name] = true
			startTimeline(closing, p, name, db)
		}
	}
}

// startTimeline is startTimelines for one server.
func startTimeline(closing context.Context, p *parts, name string, db pgdb.DB) {
	go func() {
		ctx, cancel := context.WithTimeout(closing, timelineTimeout)
		sent := time.Now()
		read := &pgdb.Statement{SQL: timeline.SQL}
		err := batch.PanicError(func() {
			if db.Run(ctx, []*pgdb.Statement{read}) == nil {
				for part := range p.stores {
					if p.routes.of(part).address == name {
						p.stores[part].SeeTimeline(read, sent)
					}
				}
			}
		})
		cancel()
		p.options.report(err)
		p.routes.mu.Lock()
		delete(p.routes.timelines, name)
		p.routes.mu.Unlock()
	}()
}

// SeeTimeline reads the result of timeline.SQL, which was sent at a time.
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
