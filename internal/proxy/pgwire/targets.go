package pgwire

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
)

// avoidFor is the time for which a target that did not respond is tried last.
const avoidFor = 10 * time.Second

// targetMemory records the targets that did not respond lately. These targets are tried last, so that new
// connections do not wait for them. targetMemory also records the latest timeline of a primary, so that a
// replaced primary is not used.
type targetMemory struct {
	mu       sync.Mutex
	failures map[int]time.Time // the latest failure of each target, by its index
	timeline string            // see pg.TimelineSQL; "" before the first
	// The number of replaced timelines and connection strings; atomic, changed under the mutex.
	generation int32
}

// order returns the indexes of n targets in the order in which to try them.
func (m *targetMemory) order(n int) []int {
	var preferred, avoided []int
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := 0; i < n; i++ {
		if time.Since(m.failures[i]) < avoidFor {
			avoided = append(avoided, i)
		} else {
			preferred = append(preferred, i)
		}
	}
	return append(preferred, avoided...)
}

// record records whether a target responded.
func (m *targetMemory) record(i int, responded bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failures == nil {
		m.failures = map[int]time.Time{}
	}
	m.failures[i] = time.Time{}
	if !responded {
		m.failures[i] = time.Now()
	}
}

// recordTimeline records the timeline of a primary. ok is false if a later timeline of the same system was
// seen, so that another primary has replaced this one. generation is the generation of connections to this
// primary. Connections of an earlier generation lead to a replaced primary.
func (m *targetMemory) recordTimeline(name string) (generation int32, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if pg.EarlierTimeline(name, m.timeline) {
		return 0, false
	}
	if pg.EarlierTimeline(m.timeline, name) {
		atomic.AddInt32(&m.generation, 1)
	}
	m.timeline = name
	return m.generation, true
}

// replace clears the memory because the targets changed, and starts the next generation.
func (m *targetMemory) replace() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures = nil
	m.timeline = ""
	atomic.AddInt32(&m.generation, 1)
}
