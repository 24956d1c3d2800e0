package ratelimit

import "sync"

// Slot is what a hit on a limit InFlight holds while its request runs. The caller makes one for each
// hit (Hit.Slot), and calls Release when the request has ended, whatever became of the hit: also
// after a refusal or an error, and while Take still runs.
type Slot struct {
	// Lost is called, once at most, if the process has lost the slot because it was stopped for too
	// long. Others may have it now, so the request should end. It must not block. Nil does nothing.
	// It does not change after Take.
	Lost func()

	mu       sync.Mutex // guards all that follows
	held     []func()   // give back what is held: a request that is decided again may hold more than one
	released bool
	lost     bool
}

// Release gives the slot back if it is held, and has it given back at once if a store still decides
// the hit. It does not wait for the store. A second call does nothing. A nil Slot holds nothing.
func (s *Slot) Release() {
	if s == nil {
		return
	}
	s.mu.Lock()
	held := s.held
	s.held = nil
	s.released = true
	s.mu.Unlock()
	for i := range held {
		held[i]()
	}
}

// Hold is for stores: the hit is admitted, and free gives the slot back.
func (s *Slot) Hold(free func()) {
	s.mu.Lock()
	released := s.released
	if !released {
		s.held = append(s.held, free)
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
