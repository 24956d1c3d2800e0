// Package await waits in tests for background work.
//
// Where time passes in a program alone, a test passes the time in, or runs in testing/synctest. In make test,
// these wait longer than 200 ms, because a server, a driver or a process has to see time pass:
//   - conformance, for each driver: calls that end at their deadline (6 s), idle connections that are kept
//     (1 s) or replaced (0.3 s), and pauses in which a connection is lost (0.4 to 1.1 s)
//   - TestCloseRefundsWaitingCharge (2 s): a charge waits until its row is charged again
//   - TestProxyIsRegistered and others with a Node: a row is renewed every 3 s
//   - TestFlushWaitsOneSecondForLockedRow, TestRequestWaitsForBusyRow and other tests of locks: lock_timeout
//   - TestCommandSurvivesDeadlock and TestConcurrentWritersDoNotDeadlock (1 s each time): deadlock_timeout
//   - proxies with a policy, as in TestSmoke: they poll every 0.5 s
//   - all that open a database within a minute of midnight in UTC: see cluster.AwaitDay
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

// Until is Within three minutes, in which a real proxy does its work on a busy machine, too.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	Within(t, 3*time.Minute, what, condition)
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
