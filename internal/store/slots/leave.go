package slots

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/own"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Leave gives slots back. A durable one waits for the disk: else the server may have the slots again after a
// crash, and nobody gives them back a second time. The row of a key that has none gets numbers below 0, which are no
// slots.
var Leave = &own.Statement{Disk: true, SQL: `
INSERT INTO {table} AS r (prefix, key, slots, expires_at)
SELECT u.prefix, u.key, array_agg(-u.first - i), timestamptz '1800-01-01Z'
FROM clock, unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[]) AS u(prefix, key, n, first), generate_series(0, u.n - 1) i GROUP BY 1, 2
ORDER BY u.prefix COLLATE "C", u.key COLLATE "C"
ON CONFLICT (prefix, key) DO UPDATE SET slots = ARRAY(SELECT s FROM unnest(r.slots) s WHERE -s <> ALL (excluded.slots))`}

// Leave gives slots back.
func (f *Slots) Leave(all []Range) {
	if len(all) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range all {
		f.leave(&own.Call{Kind: f.Leaving, Row: s.Row, Number: s.First, N: s.N})
	}
}

// leave has a call give slots back, unless they have ended with their session. The caller holds mu.
func (f *Slots) leave(c *own.Call) {
	if c.Number>>32 == f.session {
		f.waiting.Add(c, 0)
	}
}

// End ends calls that give slots back. What was not given back waits for a later batch. err is why the pipeline has
// failed, and not a statement itself.
func (f *Slots) End(calls []*own.Call, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range calls {
		if c.Err == nil {
			continue
		}
		if err == nil {
			c.Retry()
		}
		f.leave(c)
	}
}

// LeaveUnsure gives slots back of which it is not known whether they were taken.
func (f *Slots) LeaveUnsure(all []Range) {
	f.Leave(all)
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range all {
		f.unsure = append(f.unsure, unsureSlots{Range: s, due: now.Add(leaveAgain), until: now.Add(lateEnter)})
	}
	if len(f.unsure) > mostUnsure {
		f.unsure = nil
		f.renewed = time.Time{}
	}
}

// againLocked returns the unsure slots that are due. Their time does not run while the database is down. The caller
// holds mu.
func (f *Slots) againLocked(now time.Time, down bool) []Range {
	var again []Range
	var left []unsureSlots
	for _, s := range f.unsure {
		if down {
			s.until = now.Add(lateEnter)
		} else if now.After(s.due) {
			again = append(again, s.Range)
			s.due = now.Add(leaveAgain)
		}
		if down || s.due.Before(s.until) {
			left = append(left, s)
		}
	}
	f.unsure = left
	return again
}

// closeTimeout is for the end of the session.
const closeTimeout = 500 * time.Millisecond

// Close ends the session, before the store is closed. What waits has been given back.
func (f *Slots) Close() {
	f.mu.Lock()
	session := f.session
	f.mu.Unlock()
	if session == 0 || f.database.Unavailable() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	// After a failure the session runs out.
	_ = f.database.DB.Run(ctx, f.statements(&pgdb.Statement{SQL: endSQL, Args: []any{session}, Unnamed: true}))
}
