package engine

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// leaveSlotsSQL gives slots back. A durable one waits for the disk: else the server may have the slots again after a
// crash, and nobody gives them back a second time. The row of a key that has none gets numbers below 0, which are no
// slots.
const leaveSlotsSQL = clockSQL + `
INSERT INTO {table} AS r (prefix, key, slots, expires_at)
SELECT u.prefix, u.key, array_agg(-u.slot), timestamptz '1800-01-01Z'
FROM clock, unnest($2::text[], $3::text[], $4::bigint[]) AS u(prefix, key, slot) GROUP BY 1, 2
ORDER BY u.prefix COLLATE "C", u.key COLLATE "C"
ON CONFLICT (prefix, key) DO UPDATE SET slots = ARRAY(SELECT s FROM unnest(r.slots) s WHERE -s <> ALL (excluded.slots))`

// planLeave plans that slots are given back. A row can have several entries in the statement.
func planLeave(p *plan, s *slots, only bool) *entry {
	e := nextEntry(p)
	*e = entry{kind: leave, id: s.row, n: s.n, first: s.first}
	g := groupFor(p, 0, statementKey{kind: leave, definition: inFlight, durable: s.row.Durable}, only)
	g.entries = append(g.entries, e)
	return e
}

// left ends a call that gives slots back. What was not given back waits for a later batch. decided is whether the
// statement itself has failed, and not the pipeline.
func (f *flight) left(c *ownCall, failure error, decided bool) {
	if failure == nil {
		return
	}
	again := &ownCall{kind: leaveSlots, slots: c.slots, since: c.since}
	if decided {
		again = c.again()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.postLeave(again)
}

// leaveUnsure gives slots back of which it is not known whether they were taken.
func (f *flight) leaveUnsure(all []slots) {
	f.leave(all)
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range all {
		s.due = now.Add(leaveAgain)
		s.until = now.Add(lateEnter)
		f.unsure = append(f.unsure, s)
	}
	if len(f.unsure) > mostUnsure {
		f.unsure = nil
		f.renewed = time.Time{}
	}
}

// againLocked returns the unsure slots that are due. Their time does not run while the database is down. The caller holds mu.
func (f *flight) againLocked(now time.Time, down bool) []slots {
	if down {
		for i := range f.unsure {
			f.unsure[i].until = now.Add(lateEnter)
		}
		return nil
	}
	n := 0
	for n < len(f.unsure) && now.After(f.unsure[n].due) {
		n++
	}
	again := append([]slots(nil), f.unsure[:n]...)
	f.unsure = f.unsure[n:]
	for _, s := range again {
		if s.due = now.Add(leaveAgain); s.due.Before(s.until) {
			f.unsure = append(f.unsure, s)
		}
	}
	return again
}

// endTimeout is for the end of a session.
const endTimeout = 500 * time.Millisecond

// endFlight gives all slots back and ends the session, before the store is closed.
func endFlight(s *Store) {
	f := s.engine.flight
	f.mu.Lock()
	session := f.session
	f.mu.Unlock()
	if session == 0 || s.engine.server.unavailable() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	// After a failure the session runs out.
	_ = s.engine.server.db.Run(ctx, f.statements(&pgdb.Statement{SQL: endSQL, Args: []any{session}, Unnamed: true}))
}
