package ratelimit

import "sync"

// Hold holds the units of a hit on a limit that is InFlight or Reserves. The caller calls Release when its
// request ends, whether or not the hit was allowed. The zero value is ready for use.
type Hold struct {
	// Lost, if not nil, is called when the slot may have gone to another request because this
	// process was stopped for too long. The request should end. Lost must not block.
	Lost func()

	mu       sync.Mutex // guards the fields below
	frees    []func()   // release the units, which a retried request may hold more than once
	released bool
	lost     bool
}

// Release releases the units, or arranges for that if the hit is still being decided. It does
// not block. Further calls, and calls on a nil Hold, do nothing.
func (h *Hold) Release() {
	if h == nil {
		return
	}
	h.mu.Lock()
	frees := h.frees
	h.frees = nil
	h.released = true
	h.mu.Unlock()
	for i := range frees {
		frees[i]()
	}
}

// Acquire records that the store admitted the hit. Release calls free, or Acquire does if Release was called
// already. Only stores call Acquire.
func (h *Hold) Acquire(free func()) {
	h.mu.Lock()
	released := h.released
	if !released {
		h.frees = append(h.frees, free)
	}
	h.mu.Unlock()
	if released {
		free()
	}
}

// Lose records that the slot is lost and calls Lost once unless the slot was released. Only
// stores call Lose.
func (h *Hold) Lose() {
	h.mu.Lock()
	first := !h.lost && !h.released && h.Lost != nil
	h.lost = true
	h.mu.Unlock()
	if first {
		h.Lost()
	}
}
