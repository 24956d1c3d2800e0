package engine

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Release releases slots in the background. Each release is retried until the server has answered.
func (s *slots) Release(ranges []slotRange) {
	for _, r := range ranges {
		batch.Add(s.background, &batch.Call{Order: batch.Before, Repeat: true, Claim: r.First,
			End: s.onRelease, Hits: []ratelimit.Hit{{Limit: r.Limit, Key: r.Row.Key, Cost: r.N}}}, 0)
	}
}

// releaseEnded implements batch.Call.End for releases. After a lost release, it ends the session with all its
// slots.
func (s *slots) releaseEnded(err error) {
	if err != nil {
		s.mu.Lock()
		s.renewedAt = time.Time{}
		s.mu.Unlock()
	}
}

// ReleaseUncertain releases slots that may or may not have been taken.
func (s *slots) ReleaseUncertain(ranges []slotRange) {
	s.Release(ranges)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range ranges {
		s.uncertain = append(s.uncertain,
			uncertainSlots{slotRange: r, due: now.Add(releaseInterval), until: now.Add(lateTakeTime)})
	}
	if len(s.uncertain) > maxUncertain {
		s.uncertain = nil
		s.renewedAt = time.Time{}
	}
}

// dueUncertain returns the uncertain slots that are due for another release. During an outage (down), it
// extends their time instead. The caller holds mu.
func (s *slots) dueUncertain(now time.Time, down bool) []slotRange {
	var again []slotRange
	var left []uncertainSlots
	for _, r := range s.uncertain {
		if down {
			r.until = now.Add(lateTakeTime)
		} else if now.After(r.due) {
			again = append(again, r.slotRange)
			r.due = now.Add(releaseInterval)
		}
		if down || r.due.Before(r.until) {
			left = append(left, r)
		}
	}
	s.uncertain = left
	return again
}

// endTimeout bounds the statement in Close that ends the session.
const endTimeout = 500 * time.Millisecond

// Close ends the session. The caller has released all slots, and closes the store afterwards.
func (s *slots) Close() {
	s.mu.Lock()
	session := s.session
	s.mu.Unlock()
	if session == 0 || s.database.Health.Unavailable() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	// After a failure the session expires.
	_ = s.database.DB.Run(ctx,
		s.statements(&pgdb.Statement{SQL: endSQL, Args: []any{session}, Unnamed: true}))
}
