// Package seed gives tests random numbers that can be repeated.
package seed

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var given = flag.Uint64("seed", 0,
	"what random tests choose, as an earlier run has logged it; 0 is another choice each time")

// New returns random numbers for one goroutine of a test. A test that fails logs the seed; the flag -seed
// makes the numbers the same again.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Of(t), 1))
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
