package slots

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// renewInterval is the time between two renewals of the session. tickInterval is the time between two
	// checks for a due renewal.
	renewInterval = 3 * time.Second
	tickInterval  = 250 * time.Millisecond
	// sessionTime is the time for which a session is used after its last renewal was sent.
	sessionTime = 8 * time.Second
	// renewTimeout bounds one renewal.
	renewTimeout = time.Second
	// If a take got no answer, the server may still run it after the first release. So the store releases an
	// uncertain slot again after each releaseInterval, until the database has answered for lateTakeTime
	// without a break: then no late take can follow.
	releaseInterval = time.Second
	lateTakeTime    = 10 * time.Second
	// maxUncertain bounds the uncertain slots. Beyond it the session ends, and all slots with it.
	maxUncertain = 10000
)

// sessionSQL starts a session, ends the previous one ($1), and returns the name of the new session. A new
// name is above all names in the table, and a row stays in the table for a day after its session, so no name
// is used twice. A new name ignores names that are an hour or more ahead, which a wrong clock made, because
// such a name would push all later names ahead. renewSQL renews a session that was last renewed at most 8
// seconds ago (sessionTime). Other processes wait for 10 seconds (algorithm/in_flight.go), so a renewal never
// revives a session after they have freed its slots.
const (
	sessionSQL = `WITH ended AS (UPDATE {processes} SET seen = '-infinity' WHERE process = $1::bigint),
	swept AS (DELETE FROM {processes} WHERE seen < clock_timestamp() - interval '1 day'
		AND process < extract(epoch FROM clock_timestamp())::bigint - 946684800 - 86400)
INSERT INTO {processes} (process, seen)
SELECT greatest(extract(epoch FROM clock_timestamp())::bigint - 946684800,
	coalesce(max(process) FILTER (WHERE process < extract(epoch FROM clock_timestamp())::bigint - 946684800
		+ 3600) + 1, 0)), clock_timestamp() FROM {processes}
ON CONFLICT (process) DO NOTHING RETURNING process`
	renewSQL = `UPDATE {processes} SET seen = clock_timestamp() WHERE process = $1::bigint
	AND seen BETWEEN clock_timestamp() - interval '8 s' AND clock_timestamp() + interval '8 s'
	RETURNING process`
	endSQL = `UPDATE {processes} SET seen = '-infinity' WHERE process = $1::bigint`
)

// current returns the session, and reports whether the store may use it.
func (s *Slots) current() (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.session, s.usable(time.Now())
}

// usable reports whether the store may use its session. The caller holds mu.
func (s *Slots) usable(now time.Time) bool {
	return s.session != 0 && now.Sub(s.renewedAt) < sessionTime &&
		now.Round(0).Sub(s.renewedAt.Round(0)) < sessionTime
}

// Session returns a usable session. It starts a new one if necessary, with timeout for each attempt.
func (s *Slots) Session(ctx context.Context, timeout time.Duration) (int64, error) {
	session, ok := s.current()
	if ok {
		return session, nil
	}
	s.starting.Lock()
	defer s.starting.Unlock()
	previous, ok := s.current()
	if ok {
		return previous, nil
	}
	sent := time.Now()
	for {
		start := &pgdb.Statement{SQL: sessionSQL, Args: []any{previous}, Unnamed: true}
		if _, err := s.Run(ctx, timeout, s.Texts.OnSessions(start)); err != nil {
			return 0, err
		}
		if start.Err != nil {
			return 0, fmt.Errorf("slots of requests in flight: %w", start.Err)
		}
		if names := pg.Bigints(start.Result); len(names) == 1 {
			session = names[0]
			break
		}
	}
	atomic.StoreInt32(&s.used, 1)
	s.mu.Lock()
	s.session = session
	s.renewedAt = sent
	var lost []*heldSlots
	for h := range s.held {
		lost = append(lost, h)
	}
	s.held = map[*heldSlots]bool{}
	s.rows = map[lease.RowID]int64{}
	s.uncertain = nil
	tick := !s.ticking
	s.ticking = true
	s.mu.Unlock()
	if len(lost) > 0 {
		go s.regain(lost)
	}
	if tick {
		go s.tick()
	}
	return session, nil
}

// tick renews the session when that is due, until the store is closed.
func (s *Slots) tick() {
	closing := s.Closing
	for health.Sleep(closing, tickInterval); closing.Err() == nil; health.Sleep(closing, tickInterval) {
		s.Report(batch.PanicError(func() { s.renew(closing, time.Now()) }))
	}
}

// renew releases the uncertain slots that are due for another release, and renews the session if that is due.
// If the session has expired, renew starts a new one.
func (s *Slots) renew(closing context.Context, now time.Time) {
	s.mu.Lock()
	session, fresh, renewedAt := s.session, s.usable(now), s.renewedAt
	down := s.Health.Unavailable() != nil
	again := s.dueUncertain(now, down)
	s.mu.Unlock()
	s.Release(again)
	if fresh && now.Sub(renewedAt) < renewInterval || down {
		return
	}
	if fresh {
		renewal := &pgdb.Statement{SQL: renewSQL, Args: []any{session}, Unnamed: true}
		err := s.DB.Run(closing, renewTimeout, s.Texts.OnSessions(renewal))
		if err != nil || renewal.Err != nil {
			return // requests detect an outage
		}
		s.mu.Lock()
		// Meanwhile, a batch has started another session, or releaseEnded has ended this one.
		replaced := s.session != session || s.renewedAt != renewedAt
		switch {
		case replaced:
		case renewal.Rows == 1:
			s.renewedAt = now
		default:
			s.renewedAt = time.Time{} // the row has expired
		}
		s.mu.Unlock()
		if replaced || renewal.Rows == 1 {
			return
		}
	}
	_, _ = s.Session(closing, renewTimeout) // the next tick tries again
}

// endTimeout bounds the statement in Close that ends the session.
const endTimeout = 500 * time.Millisecond

// Close ends the session. The caller has released all slots, and closes the store afterwards.
func (s *Slots) Close() {
	s.mu.Lock()
	session := s.session
	s.mu.Unlock()
	if session == 0 || s.Health.Unavailable() != nil {
		return
	}
	// After a failure the session expires.
	_ = s.DB.Run(context.Background(), endTimeout,
		s.Texts.OnSessions(&pgdb.Statement{SQL: endSQL, Args: []any{session}, Unnamed: true}))
}
