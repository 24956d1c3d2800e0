// Package await waits in tests for what happens in the background.
package await

import (
	"testing"
	"time"
)

// Within waits until something holds, and fails the test if it does not hold in time. It
// asks every few milliseconds.
func Within(t testing.TB, most time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(most); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", most, what)
		}
	}
}
