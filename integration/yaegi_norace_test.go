//go:build !race

package integration

import "testing"

// elsewhere is for when the race detector is on.
func elsewhere(*testing.T) bool { return false }
