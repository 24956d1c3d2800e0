// Package seed gives tests reproducible random numbers.
package seed

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var given = flag.Uint64("seed", 0,
	"what random tests choose, as an earlier run has logged it; 0 is another choice each time")

// New returns a source of random numbers for one goroutine of a test. A failed test logs the seed, and the
// flag -seed reproduces the numbers.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Of(t), 1))
}

// Of returns the seed, for a test with several sequences of random numbers.
func Of(t testing.TB) uint64 {
	t.Helper()
	one := *given
	for one == 0 {
		one = rand.Uint64()
	}
	t.Logf("-seed %d", one)
	return one
}
