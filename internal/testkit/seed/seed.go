// Package seed gives tests random numbers that can be repeated.
package seed

import (
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
)

var given = flag.Uint64("seed", 0,
	"what random tests choose, as an earlier run has logged it; 0 is another choice each time")

// New returns random numbers for a test, which several goroutines may use at once. A test that fails
// logs the seed; the flag -seed makes the numbers the same again.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	one := Of(t)
	return rand.New(&source{pcg: rand.NewPCG(one, 1)})
}

// Of is the seed of a test that makes several sequences of random numbers.
func Of(t testing.TB) uint64 {
	t.Helper()
	one := *given
	for one == 0 {
		one = rand.Uint64()
	}
	t.Logf("-seed %d", one)
	return one
}

// source is a source for several goroutines.
type source struct {
	mu  sync.Mutex
	pcg *rand.PCG // guarded by mu
}

func (s *source) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pcg.Uint64()
}
