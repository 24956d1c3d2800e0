// Package await waits in tests for background work.
package await

import (
	"testing"
	"time"
)

// Within calls condition every few milliseconds until it returns true, and fails the test if that takes
// longer than timeout. what completes the message "not within 1s: ".
func Within(t testing.TB, timeout time.Duration, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(timeout); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", timeout, what)
		}
	}
}

// Pause sleeps for about d in many short sleeps. If the machine stalls, the pause is longer than d, because
// the stall counts only as one short sleep.
func Pause(d time.Duration) {
	const step = 10 * time.Millisecond
	for ; d > 0; d -= step {
		time.Sleep(step)
	}
}

// Lateness measures by how much a busy machine delays a task that is due every ten milliseconds. The returned
// function stops the measurement and returns the longest delay. A time that the test measures meanwhile may
// be too long by this delay.
func Lateness() (stop func() time.Duration) {
	const step = 10 * time.Millisecond
	end, result := make(chan struct{}), make(chan time.Duration)
	go func() {
		late := time.Duration(0)
		for {
			start := time.Now()
			select {
			case <-end:
				result <- max(late, time.Since(start)-step)
				return
			case <-time.After(step):
				late = max(late, time.Since(start)-step)
			}
		}
	}()
	return func() time.Duration { close(end); return <-result }
}
