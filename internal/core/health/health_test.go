package health_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// transitions follow the table in the package comment: calls, and the state after them.
var transitions = []struct {
	calls, want string
}{
	{"none", "answering"},
	{"late", "suspected"},
	{"late for a standby", "answering"},
	{"short", "answering"},
	{"busy", "answering"},
	{"lost", "down"},
	{"lost beside others", "answering"},
	{"late, answered", "answering"},
	{"late, lost", "down"},
	{"lost, late", "down"},
	{"lost, answered", "down"},
	{"late, answered, late", "suspected"},
}

// The calls of each entry of transitions lead to its state. From any state except answering, a probe that
// fails leads to down, and a probe that is answered leads to answering. After its deadline, a request is
// refused as overload only while the server is answering.
func TestCallsAndProbesChangeState(t *testing.T) {
	failed := func(timeout time.Duration, err error) func(h *health.Health) {
		return func(h *health.Health) { _ = h.Failed(time.Now(), timeout, err) }
	}
	call := map[string]func(h *health.Health){
		"none":               func(*health.Health) {},
		"answered":           func(h *health.Health) { h.Answered() },
		"late":               failed(time.Second, pgdb.ErrNoAnswer),
		"late for a standby": func(h *health.Health) { h.Check(time.Second) },
		"busy":               failed(time.Second, pgdb.ErrNotSent),
		"lost":               failed(time.Second, pgdb.ErrConnectionLost),
		"short":              failed(10*time.Millisecond, pgdb.ErrNoAnswer),
		"lost beside others": loseBesideOthers,
	}
	for _, test := range transitions {
		synctest.Test(t, func(t *testing.T) {
			closing, stop := context.WithCancel(t.Context())
			defer stop()
			answers := make(chan error)
			h := health.New(closing, func() float64 { return 0 },
				func(ctx context.Context, _ time.Duration) error {
					select {
					case err := <-answers:
						return err
					case <-ctx.Done():
						return ctx.Err()
					}
				})
			check := func(when, want string) {
				t.Helper()
				got := "answering"
				if err := h.Unavailable(); errors.Is(err, ratelimit.ErrUnavailable) {
					got = "down"
				} else if h.Silent() {
					got = "suspected"
				}
				overload := errors.Is(h.NoDecision(nil, true), ratelimit.ErrOverloaded)
				if got != want || overload != (want == "answering") {
					t.Errorf("%s, %s: state %s, overload %v, want %s", test.calls, when, got, overload, want)
				}
			}
			for name := range strings.SplitSeq(test.calls, ", ") {
				call[name](h)
			}
			check("after the calls", test.want)
			if test.want == "answering" {
				return
			}
			answers <- pgdb.ErrConnectionLost
			synctest.Wait()
			check("after a probe that failed", "down")
			time.Sleep(time.Second)
			answers <- nil
			synctest.Wait()
			check("after a probe that was answered", "answering")
		})
	}
}

// loseBesideOthers loses a connection after another one has answered.
func loseBesideOthers(h *health.Health) {
	sent := time.Now()
	time.Sleep(time.Millisecond)
	h.Answered()
	_ = h.Failed(sent, time.Second, pgdb.ErrConnectionLost)
}

// If the deadline of a request has passed (late) although the server was not silent, the error is
// ErrOverloaded. If a call ends at an earlier deadline, the error is ErrTimeout. Other failures keep their
// error.
func TestNoDecisionTellsOverloadFromOutage(t *testing.T) {
	closing, stop := context.WithCancel(t.Context())
	stop() // no probes
	h := health.New(closing, func() float64 { return 0 }, nil)
	other := errors.New("other")
	deadline, cancel := health.WithDeadline(t.Context(), time.Now().Add(-time.Minute), time.Second)
	defer cancel()
	for _, c := range []struct {
		err  error
		late bool
		want error
	}{
		{pgdb.ErrNoAnswer, true, ratelimit.ErrOverloaded},
		{pgdb.ErrNoAnswer, false, ratelimit.ErrTimeout},
		{context.DeadlineExceeded, false, ratelimit.ErrTimeout},
		{nil, true, ratelimit.ErrOverloaded},
		{other, false, other},
		{h.Ended(deadline), false, ratelimit.ErrOverloaded},
		{h.Ended(closing), false, context.Canceled},
	} {
		if err := h.NoDecision(c.err, c.late); !errors.Is(err, c.want) {
			t.Errorf("NoDecision(%v, %v) = %v, want %v", c.err, c.late, err, c.want)
		}
	}
}
