package engine

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// serverSQL identifies the server that has the counters.
const serverSQL = `SELECT ` + schema.ServerIdentity

// identityTimeout bounds a read of serverSQL, also beside the state of the tables.
const identityTimeout = 2 * time.Second

// checkIdentity clears the remembered rows if the counts may lack charges of this process, because the server
// was restarted or replaced, or its policy was restored from a dump. Leases then end without a refund. A
// policy that was created or dropped does not count as restored. identity is a finished statement serverSQL.
func (s *server) checkIdentity(identity *pgdb.Statement) {
	columns, err := pg.Columns(identity.Result)
	if identity.Err != nil || err != nil || len(columns) != 1 {
		return
	}
	started, changes, _ := strings.Cut(string(columns[0]), " ")
	const none = "0"
	s.mu.Lock()
	if changes == none {
		changes = s.policyChanges
	}
	lost := s.started != "" &&
		(started != s.started || s.policyChanges != "" && changes != s.policyChanges)
	s.started, s.policyChanges = started, changes
	if lost {
		lease.Clear(s.rows)
		for _, l := range s.lanes {
			batch.DropRefunds(l.backlog)
		}
	}
	s.mu.Unlock()
	if lost {
		s.onReplaced()
	}
}

// Tick reads serverSQL in the background, unless a read is in progress. Its caller calls it about once a
// second. A failed read changes nothing, because requests detect that the database does not answer.
func (e *Engine) Tick() {
	if !atomic.CompareAndSwapInt32(&e.ticking, 0, 1) {
		return
	}
	go func() {
		defer atomic.StoreInt32(&e.ticking, 0)
		_ = e.ping(e.closing, identityTimeout)
	}()
}

// ping runs serverSQL, and passes its result to checkIdentity. After an outage, a probe runs ping before the
// next request is decided, because another server may have taken over. A panic of the driver is an error.
func (s *server) ping(ctx context.Context, timeout time.Duration) error {
	statements := []*pgdb.Statement{{SQL: serverSQL}}
	err := batch.Try(func() error { return s.db.Run(ctx, timeout, statements) })
	if err != nil && s.closing.Err() == nil {
		countErrors(s.stats, statements, err)
	}
	if err == nil {
		s.checkIdentity(statements[0])
	}
	return err
}
