package engine_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/parts"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// partTimeout is for one request of the tests that move parts.
const partTimeout = 250 * time.Millisecond

// partsLoad takes from many keys until stop is closed, and counts by the part.
type partsLoad struct {
	Granted, Unknown [testParts]int64 // atomic; without an answer is unknown
	Requests         int64
}

func (l *partsLoad) run(store ratelimit.Store, limit *ratelimit.Limit, callers, keys int, stop <-chan struct{}) *sync.WaitGroup {
	var all sync.WaitGroup
	for c := range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			d := make([]ratelimit.Decision, 1)
			for i := c; ; i += callers {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprint("key ", i%keys)
				part := parts.Of(key, testParts)
				err := store.Take(context.Background(), partTimeout, []ratelimit.Hit{{Limit: limit, Key: key, Cost: 1}}, d)
				atomic.AddInt64(&l.Requests, 1)
				switch {
				case err != nil:
					atomic.AddInt64(&l.Unknown[part], 1)
					time.Sleep(time.Millisecond)
				case d[0].Allowed:
					atomic.AddInt64(&l.Granted[part], 1)
				}
			}
		}()
	}
	return &all
}

// copy is the counts as of now.
func (l *partsLoad) copy() *partsLoad {
	c := &partsLoad{Requests: atomic.LoadInt64(&l.Requests)}
	for part := range testParts {
		c.Granted[part] = atomic.LoadInt64(&l.Granted[part])
		c.Unknown[part] = atomic.LoadInt64(&l.Unknown[part])
	}
	return c
}

// compare compares what was granted with what was counted. A request without an answer may have counted.
func (s *spread) compare(t *testing.T, l *partsLoad, table, prefix string, lost map[int]bool) {
	t.Helper()
	granted, unknown := int64(0), int64(0)
	counted := s.counted(table, prefix)
	sum := int64(0)
	for part := range testParts {
		granted += l.Granted[part]
		unknown += l.Unknown[part]
		sum += counted[part]
		if lost[part] {
			continue
		}
		if counted[part] < l.Granted[part] || counted[part] > l.Granted[part]+l.Unknown[part] {
			t.Errorf("part %d: granted %d, without an answer %d, counted %d", part, l.Granted[part], l.Unknown[part], counted[part])
		}
	}
	t.Logf("%d requests: granted %d, without an answer %d, counted %d", l.Requests, granted, unknown, sum)
}

// keyIn is a key of a part.
func keyIn(part int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("in ", i); parts.Of(key, testParts) == part {
			return key
		}
	}
}
