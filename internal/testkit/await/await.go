// Package await waits in tests for background work.
package await

import (
	"testing"
	"time"
)

// Within waits until holds returns true, and fails the test if that takes longer than timeout. It calls
// holds every few milliseconds. what completes the message "not within 1s: ".
func Within(t testing.TB, timeout time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(timeout); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", timeout, what)
		}
	}
}

// Pause sleeps for about d in many short sleeps. A stall of the machine counts only as one of them.
func Pause(d time.Duration) {
	const step = 10 * time.Millisecond
	for ; d > 0; d -= step {
		time.Sleep(step)
	}
}

// Lateness measures the maximum delay of a task that is due every ten milliseconds, until the returned
// function is called. Times that a test measures meanwhile may be late by as much.
func Lateness() (most func() time.Duration) {
	const step = 10 * time.Millisecond
	stop, late := make(chan struct{}), make(chan time.Duration)
	go func() {
		most := time.Duration(0)
		for {
			start := time.Now()
			select {
			case <-stop:
				late <- max(most, time.Since(start)-step)
				return
			case <-time.After(step):
				most = max(most, time.Since(start)-step)
			}
		}
	}()
	return func() time.Duration { close(stop); return <-late }
}
