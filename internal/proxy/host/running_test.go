package host_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// response is a host.Unsettled. A client that does not read keeps it busy until the proxy interrupts it or,
// if it is stuck, for ever.
type response struct {
	busy, stuck, lost bool
}

func (r *response) Stop() bool { return !r.busy }
func (r *response) Interrupt() { r.busy = r.stuck }
func (r *response) Lose()      { r.lost = true }

// wantSeconds fails the test unless a number of whole seconds have passed.
func wantSeconds(t *testing.T, what string, since time.Time, want int) {
	t.Helper()
	check.Equal(t, what+", seconds", int(time.Since(since).Seconds()), want)
}

// A proxy that stops waits half a second for a client that does not read, and five for one that it cannot
// interrupt, whose request alone is lost.
func TestStoppingProxyInterruptsClientsThatDoNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running host.Running
		idle, slow, stuck := &response{}, &response{busy: true}, &response{busy: true, stuck: true}
		for _, r := range []*response{idle, slow} {
			running.Add(r)
		}
		began := time.Now()
		running.Stop()
		if got := time.Since(began); got < 500*time.Millisecond || got > 600*time.Millisecond {
			t.Errorf("with a client that does not read: %v, want half a second", got)
		}
		running.Add(stuck)
		running.Stop()
		wantSeconds(t, "with a client that is stuck", began, 5)
		check.Equal(t, "lost requests", []bool{idle.lost, slow.lost, stuck.lost}, []bool{false, false, true})
		running.Wait(time.Hour)
		wantSeconds(t, "without requests", began, 5)
	})
}

// A proxy that stops waits for responses no longer than its grace period.
func TestStoppingProxyWaitsForResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running host.Running
		first, began := running.Add(&response{}), time.Now()
		running.Add(&response{})
		time.AfterFunc(time.Second, func() { running.Remove(first) })
		running.Wait(3 * time.Second)
		wantSeconds(t, "with a response that does not end", began, 3)
	})
}

// A response that goes on after a reload keeps the database open in which it is charged.
func TestResponseKeepsItsDatabaseOpenAfterAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t)
		h := p.start("a", "", "")
		atomic.StoreInt32(&h.Busy, 1)
		h.Release()
		time.Sleep(2 * (delay + timeout))
		p.expectClosed("while a response goes on", "", 1)
		atomic.StoreInt32(&h.Busy, 0)
		time.Sleep(time.Second)
		p.expectClosed("after the response", "a", 0)
	})
}
