package pgxdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
)

// refusalTime is how long the pool opens no further connection after the server has refused
// one, while there are others.
const refusalTime = 250 * time.Millisecond

// gate bounds how many calls have a connection or are opening one. A server can allow fewer
// connections than the pool. If it refuses the new connection of a call, the call waits for a
// connection of another call. It fails only if no other call has one.
//
// The server also counts logins under way. It can refuse all of several logins that come at the
// same time, although it allows one connection. So calls fail only after the server has refused
// a call while no other one was in the gate.
//
// A call is in the gate from enter to leave. Calls that wait enter in the order of arrival.
type gate struct {
	most int        // in the gate at once
	idle func() int // how many idle connections the pool has

	mu        sync.Mutex // guards all that follows
	inside    int
	known     int       // while refused is recent: how many connections there are
	refused   time.Time // when the server last refused a connection beside others
	crowded   bool      // several calls were in the gate at once since it was last empty
	exclusive bool      // only one call may be in the gate, until it leaves
	waiting   []*entrant
	closed    bool
}

var errClosed = errors.New("pgxdb: the DB is closed")

// entrant is a call that waits at the gate. It leaves gate.waiting when ready gets its value:
// nil when it is in, or why there is no connection.
type entrant struct{ ready chan error }

// enter waits until the call is in the gate, or ctx ends.
func (g *gate) enter(ctx context.Context) error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return errClosed
	}
	if len(g.waiting) == 0 && g.letIn() {
		g.mu.Unlock()
		return nil
	}
	e := &entrant{ready: make(chan error, 1)}
	g.waiting = append(g.waiting, e)
	g.mu.Unlock()
	select {
	case err := <-e.ready:
		return err
	case <-ctx.Done():
		return g.giveUp(e, ctx.Err())
	}
}

// giveUp ends the wait of a call because its context has ended.
func (g *gate) giveUp(e *entrant, cause error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting, e); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
		return fmt.Errorf("%w: pgxdb: none of the %d connections became free: %w", sqlstate.ErrNoTurn, g.inside, cause)
	}
	if <-e.ready == nil { // the call is in already
		g.inside--
		g.exclusive = false
		g.admit()
	}
	return cause
}

// letIn lets another call in if there is room. The caller holds the mutex.
func (g *gate) letIn() bool {
	most := g.most
	if g.exclusive {
		most = 1
	} else if !g.refused.IsZero() && time.Since(g.refused) < refusalTime {
		most = g.known
	}
	if g.inside >= most {
		return false
	}
	g.inside++
	g.crowded = g.inside > 1
	return true
}

// admit lets calls in that wait. The caller holds the mutex.
func (g *gate) admit() {
	for len(g.waiting) > 0 && g.letIn() {
		g.waiting[0].ready <- nil
		g.waiting = g.waiting[1:]
	}
}

// reopen lets calls in that wait since a refusal which is not recent any more. No other call
// may leave for a long time.
func (g *gate) reopen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.admit()
}

// leave takes the call out of the gate. Its connection is in the pool again, or closed.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	g.exclusive = false
	g.admit()
}

// refuse takes a call out of the gate after its new connection has failed with err. It returns
// nil if the call has to enter again: because there are other connections, idle or of calls in
// the gate, or because there were others beside the call. Otherwise err is for all calls that wait.
func (g *gate) refuse(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	g.exclusive = false
	// A call makes its connection idle before it leaves the gate.
	if others := g.inside + g.idle(); others > 0 && !g.closed {
		g.known = others
		g.refused = time.Now()
		g.admit()
		time.AfterFunc(refusalTime, g.reopen)
		return nil
	}
	g.refused = time.Time{}
	if g.crowded && !g.closed {
		g.exclusive = true
		g.admit()
		return nil
	}
	g.fail(err)
	return err
}

// fail ends the wait of all calls with err. The caller holds the mutex.
func (g *gate) fail(err error) {
	for _, e := range g.waiting {
		e.ready <- err
	}
	g.waiting = nil
}

// close fails the calls that wait, and all later ones.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.fail(errClosed)
}
