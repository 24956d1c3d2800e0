// Package seed gives tests reproducible random numbers.
package seed

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var fixed = flag.Uint64("seed", 0, "the seed of random tests, as a run logs it; 0 is another seed each time")

// New returns a source of random numbers for one goroutine of a test. A failed test logs the seed, and the
// flag -seed reproduces the numbers.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Of(t), 1))
}

// Of returns the seed, for a test with several sequences of random numbers.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed := *fixed
	for seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed %d", seed)
	return seed
}
