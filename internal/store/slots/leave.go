package slots

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Leave releases slots. Their releases are sent again until the server has answered.
func (f *Slots) Leave(all []Range) {
	for _, s := range all {
		batch.Add(f.background, &batch.Call{Order: batch.Before, Repeat: true, Claim: s.First, End: f.left,
			Hits: []ratelimit.Hit{{Limit: s.Limit, Key: s.Row.Key, Cost: s.N}}}, 0)
	}
}

// end begins another session if a release is lost, so that its slots end with the session. It is
// batch.Call.End.
func (f *Slots) end(err error) {
	if err != nil {
		f.mu.Lock()
		f.renewed = time.Time{}
		f.mu.Unlock()
	}
}

// LeaveUnsure releases slots that may have been taken.
func (f *Slots) LeaveUnsure(all []Range) {
	f.Leave(all)
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range all {
		f.unsure = append(f.unsure,
			unsureSlots{Range: s, due: now.Add(leaveAgain), until: now.Add(lateEnter)})
	}
	if len(f.unsure) > mostUnsure {
		f.unsure = nil
		f.renewed = time.Time{}
	}
}

// againLocked returns the unsure slots that are due. While the database is down, their time does not run. The
// caller holds mu.
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

// closeTimeout bounds the end of the session.
const closeTimeout = 500 * time.Millisecond

// Close ends the session, before the store is closed. All slots have been released.
func (f *Slots) Close() {
	f.mu.Lock()
	session := f.session
	f.mu.Unlock()
	if session == 0 || f.database.Health.Unavailable() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	// After a failure the session runs out.
	_ = f.database.DB.Run(ctx,
		f.statements(&pgdb.Statement{SQL: endSQL, Args: []any{session}, Unnamed: true}))
}
