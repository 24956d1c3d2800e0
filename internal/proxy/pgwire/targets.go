package pgwire

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/session"
)

// avoidFor is how long a target that did not answer is tried last.
const avoidFor = 10 * time.Second

// targetMemory remembers for a while which targets did not answer. They are tried
// last, so that not every new connection waits for them. It also remembers the latest
// timeline of a primary, so that none is used that was replaced.
type targetMemory struct {
	mu         sync.Mutex
	failed     map[int]time.Time // by the target's index, when it did not answer
	timeline   string            // see session.TimelineSQL; "" if none was seen
	generation int32             // how many times a timeline or a connection string replaced another one; atomic, set with the mutex
}

// order returns the indexes of n targets in the order in which to try them.
func (m *targetMemory) order(n int) []int {
	var first, last []int
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := 0; i < n; i++ {
		if time.Since(m.failed[i]) < avoidFor {
			last = append(last, i)
		} else {
			first = append(first, i)
		}
	}
	return append(first, last...)
}

// record remembers whether a target answered.
func (m *targetMemory) record(i int, answered bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed == nil {
		m.failed = map[int]time.Time{}
	}
	m.failed[i] = time.Time{}
	if !answered {
		m.failed[i] = time.Now()
	}
}

// current reports whether a primary's timeline is not earlier than another one of the same system that was
// seen, and remembers it then. The generation is that of connections to this primary: those of an earlier one are to
// a primary that was replaced.
func (m *targetMemory) current(name string) (generation int32, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if session.Earlier(name, m.timeline) {
		return 0, false
	}
	if session.Earlier(m.timeline, name) {
		atomic.AddInt32(&m.generation, 1)
	}
	m.timeline = name
	return m.generation, true
}

// replace forgets the targets, and ends the generation of their connections: there are others.
func (m *targetMemory) replace() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = nil
	m.timeline = ""
	atomic.AddInt32(&m.generation, 1)
}
