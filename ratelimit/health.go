package ratelimit

import (
	"context"
	"errors"
	"time"
)

// health decides whether it is worth asking the database. While it does not
// answer, requests must not each wait for their timeout in turn: after a failure
// the store says so at once for a while, then lets one batch try again.
type health struct {
	pause time.Duration // how long to rest after the last failure; 0 is healthy
	until time.Time     // when to try again
	slow  int           // batches in a row that ran out of time
}

const (
	firstPause = 50 * time.Millisecond
	// longestPause bounds how long after its return the database is noticed.
	longestPause = 800 * time.Millisecond
)

// down reports whether to refrain at now.
func (h *health) down(now time.Time) bool { return h.pause > 0 && now.Before(h.until) }

// note takes in what came of asking.
func (h *health) note(err error, now time.Time) {
	if err == nil {
		h.pause, h.slow = 0, 0
		return
	}
	// One batch out of time may have met a row that somebody else has locked;
	// the database is well.
	if errors.Is(err, context.DeadlineExceeded) {
		if h.slow++; h.slow == 1 && h.pause == 0 {
			return
		}
	}
	h.pause *= 2
	if h.pause < firstPause {
		h.pause = firstPause
	}
	if h.pause > longestPause {
		h.pause = longestPause
	}
	h.until = now.Add(h.pause)
}
