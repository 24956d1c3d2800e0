package slots

import (
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Release releases slots in the background. Each release is retried until the server has answered. Until
// then, each batch that takes slots of the row repeats the release before its takes, because the batch of the
// release may reach the server later.
func (s *Slots) Release(ranges []Range) {
	s.mu.Lock()
	for _, r := range ranges {
		s.releasing[r.Row] = append(s.releasing[r.Row], r)
	}
	atomic.AddInt32(&s.unanswered, int32(len(ranges)))
	s.mu.Unlock()
	for _, r := range ranges {
		r := r
		s.add(&batch.Job{Hit: ratelimit.Hit{Limit: r.Limit, Key: r.Row.Key, Cost: r.N}, Claim: r.First,
			Repeat: true, End: func(_ int64, err error) { s.releaseEnded(r, err) }})
	}
}

// releaseEnded ends the repetitions of a release. After a lost release, it ends the name with all its
// slots.
func (s *Slots) releaseEnded(r Range, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.releasing[r.Row]
	for i := range left {
		if left[i].First == r.First {
			left = append(left[:i:i], left[i+1:]...)
			atomic.AddInt32(&s.unanswered, -1)
			break
		}
	}
	if s.releasing[r.Row] = left; len(left) == 0 {
		delete(s.releasing, r.Row)
	}
	if err != nil {
		s.Name.Expire()
	}
}

// Releasing returns the unanswered releases of a row. A batch that takes slots of the row sends them again.
func (s *Slots) Releasing(row lease.RowID) []Range {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Range(nil), s.releasing[row]...)
}

// IsReleasing reports whether any release is unanswered.
func (s *Slots) IsReleasing() bool { return atomic.LoadInt32(&s.unanswered) > 0 }

// ReleaseUncertain releases slots that may or may not have been taken.
func (s *Slots) ReleaseUncertain(ranges []Range) {
	s.Release(ranges)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range ranges {
		s.uncertain = append(s.uncertain,
			uncertainSlots{Range: r, due: now.Add(releaseInterval), until: now.Add(lateTakeTime)})
	}
	if len(s.uncertain) > maxUncertain {
		s.uncertain = nil
		s.Name.Expire()
	}
}

// dueUncertain returns the uncertain slots that are due for another release. During an outage (down) it
// returns none, and moves the end of all releases to lateTakeTime from now. The caller holds mu.
func (s *Slots) dueUncertain(now time.Time, down bool) []Range {
	var repeated []Range
	var left []uncertainSlots
	for _, r := range s.uncertain {
		if down {
			r.until = now.Add(lateTakeTime)
		} else if now.After(r.due) {
			repeated = append(repeated, r.Range)
			r.due = now.Add(releaseInterval)
		}
		if down || r.due.Before(r.until) {
			left = append(left, r)
		}
	}
	s.uncertain = left
	return repeated
}
