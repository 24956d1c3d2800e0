package pgwire

import (
	"math/rand"
	"sync"
	"time"
)

// hostMemory remembers for a while which targets did not answer, so that each
// new connection need not wait for the dead ones again: they come last.
type hostMemory struct {
	mu  sync.Mutex
	bad map[int]time.Time // until when, by the target's index
}

const badFor = 10 * time.Second

// order is the order in which to try the targets.
func (h *hostMemory) order(cfg *config) []int {
	n := len(cfg.targets)
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	if cfg.shuffle {
		all = rand.Perm(n)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	var good, bad []int
	for _, i := range all {
		if h.bad[i].After(now) {
			bad = append(bad, i)
		} else {
			good = append(good, i)
		}
	}
	return append(good, bad...)
}

// note takes in whether a target answered.
func (h *hostMemory) note(i int, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ok {
		delete(h.bad, i)
		return
	}
	if h.bad == nil {
		h.bad = map[int]time.Time{}
	}
	h.bad[i] = time.Now().Add(badFor)
}
