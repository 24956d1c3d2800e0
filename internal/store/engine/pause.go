package engine

import (
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// pauseSQL reads the pause: how long it lasts in microseconds, and which role made it.
const pauseSQL = `SELECT greatest(1, (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint)::text || ' by ' || paused_by || coalesce(': ' || reason, '')
FROM rate_limit_pause WHERE until > clock_timestamp()`

// Paused reports whether the limits of the database are paused, see Options.Node. Store.Take does
// not ask: bans are counted in a pause as well. Callers that enforce limits let requests pass.
func (s *Store) Paused() bool { return atomic.LoadInt32(&s.paused) != 0 }

// pauseFor begins a pause that ends after so long, changes the time of the one that is under way, or
// ends it with 0. A pause ends at its time whether the database answers or not.
func (s *Store) pauseFor(left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return // it stays as it is
	}
	if s.pauseEnds != nil {
		s.pauseEnds.Stop()
		s.pauseEnds = nil
	}
	if left <= 0 {
		s.setPaused(0)
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.pauseEnds == timer && !s.closed {
			s.pauseEnds = nil
			s.setPaused(0)
		}
	})
	s.pauseEnds = timer
	s.setPaused(1)
}

// setPaused sets whether limits are paused. A pause gives all leases back, and none begins in it: what
// decides by them in memory then needs not ask whether limits are paused. The caller holds the mutex.
func (s *Store) setPaused(paused int32) {
	if atomic.SwapInt32(&s.paused, paused) == paused {
		return
	}
	if p := partsOf(s); p != nil {
		setPartsPaused(p, paused)
	}
	if s.engine.leases == nil {
		return
	}
	if paused != 0 {
		lease.End(s.engine.leases)
	} else {
		lease.Begin(s.engine.leases)
	}
}

// readPause reads the pause, and whether a page is open. After a refusal of the server a pause lasts
// until its time.
func (r *registration) readPause(read *pgdb.Statement, now time.Time) {
	r.fail("read", read.Err)
	if read.Err != nil {
		r.readAt = retryAt(now, &r.readIn)
		return
	}
	r.readIn = 0
	text := ""
	if read.Rows == 1 && len(read.Result) > 4 {
		text = string(read.Result[4:])
	}
	text = r.watching.read(text)
	left := int64(0)
	if text != "" {
		parts := strings.SplitN(text, " ", 2)
		left, _ = strconv.ParseInt(parts[0], 10, 64) // the statement gives a number
		if left > maxPause {
			left = maxPause
		}
		r.pause = "until " + now.Add(time.Duration(left)*time.Microsecond).UTC().Format("2006-01-02 15:04:05Z") + " " + parts[len(parts)-1]
	}
	r.store.pauseFor(time.Duration(left) * time.Microsecond)
}

// notify tells of a pause.
func (r *registration) notify(now time.Time) {
	paused := r.store.Paused()
	if paused == r.told && (!paused || now.Sub(r.reminded) < remindInterval) {
		return
	}
	r.told = paused
	r.reminded = now
	text := "limits apply again"
	if paused {
		text = "limits are paused " + r.pause + ". Bans and block rules hold. To end it: caddy pg-ratelimit resume"
	}
	r.tell(text)
}

// tell calls Node.Notice.
func (r *registration) tell(text string) {
	if r.node.Notice != nil {
		_ = batch.PanicError(func() { r.node.Notice(text) })
	}
}
