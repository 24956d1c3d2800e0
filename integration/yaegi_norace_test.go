//go:build !race

package integration

import "testing"

// runWithoutRace does nothing, because the race detector is off.
func runWithoutRace(*testing.T) bool { return false }
