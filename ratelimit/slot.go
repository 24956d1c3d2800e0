package ratelimit

import "sync"

// Slot is what a hit on a limit InFlight holds until Release, which its caller calls when the request has
// ended, whatever became of the hit.
type Slot struct {
	// Lost, if not nil, is called if the process was stopped for so long that others may have the slot: the
	// request should end. It must not block.
	Lost func()

	mu       sync.Mutex // guards all that follows
	frees    []func()   // give back what is held: a request that is decided again may hold more than one
	released bool
	lost     bool
}

// Release gives the slot back, also if the hit is still being decided. It does not wait. Twice is once.
func (s *Slot) Release() {
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

// Hold is for stores: the hit is admitted, and free gives the slot back.
func (s *Slot) Hold(free func()) {
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

// Lose is for stores: the slot is lost.
func (s *Slot) Lose() {
	s.mu.Lock()
	tell := !s.lost && !s.released && s.Lost != nil
	s.lost = true
	s.mu.Unlock()
	if tell {
		s.Lost()
	}
}
