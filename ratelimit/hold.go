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
func (s *Hold) Release() {
	if s == nil {
		return
	}
	s.mu.Lock()
	frees := s.frees
	s.frees = nil
	s.released = true
	s.mu.Unlock()
	for i := range frees {
		frees[i]()
	}
}

// Acquire records that the store admitted the hit. Release calls free, or Hold does if Release was
// called already. Only stores call Hold.
func (s *Hold) Acquire(free func()) {
	s.mu.Lock()
	released := s.released
	if !released {
		s.frees = append(s.frees, free)
	}
	s.mu.Unlock()
	if released {
		free()
	}
}

// Lose records that the slot is lost and calls Lost once unless the slot was released. Only
// stores call Lose.
func (s *Hold) Lose() {
	s.mu.Lock()
	first := !s.lost && !s.released && s.Lost != nil
	s.lost = true
	s.mu.Unlock()
	if first {
		s.Lost()
	}
}
