package pgwire

import (
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/timeline"
)

// avoidFor is how long a target that did not answer is tried last.
const avoidFor = 10 * time.Second

// targetMemory remembers for a while which targets did not answer. They are tried
// last, so that not every new connection waits for them. It also remembers the latest
// timeline of a primary, so that none is used that was replaced.
type targetMemory struct {
	mu       sync.Mutex
	failed   map[int]time.Time // by the target's index, when it did not answer
	timeline string            // see timeline.SQL; "" if none was seen
	replaced bool              // timeline has replaced another one since takeReplaced
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
// seen, and remembers it then.
func (m *targetMemory) current(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if timeline.Earlier(name, m.timeline) {
		return false
	}
	m.replaced = m.replaced || timeline.Earlier(m.timeline, name)
	m.timeline = name
	return true
}

// takeReplaced reports, once, that a primary was replaced.
func (m *targetMemory) takeReplaced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	replaced := m.replaced
	m.replaced = false
	return replaced
}
