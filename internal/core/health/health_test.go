package health_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// transitions follow the table in the package comment: calls, and the state after them.
var transitions = []struct {
	calls []string
	want  string
}{
	{nil, "answering"},
	{[]string{"late"}, "suspected"},
	{[]string{"short"}, "answering"},
	{[]string{"busy"}, "answering"},
	{[]string{"lost"}, "down"},
	{[]string{"lost beside others"}, "answering"},
	{[]string{"late", "answered"}, "answering"},
	{[]string{"late", "lost"}, "down"},
	{[]string{"lost", "late"}, "down"},
	{[]string{"lost", "answered"}, "down"},
	{[]string{"late", "answered", "late"}, "suspected"},
}

// The calls of each entry of transitions lead to its state. From any state except answering, a probe that
// fails leads to down, and a probe that is answered leads to answering.
func TestCallsAndProbesChangeState(t *testing.T) {
	lost := pgdb.ErrConnectionLost
	failed := func(timeout time.Duration, err error) func(h *health.Health) {
		return func(h *health.Health) { _ = h.Failed(time.Now(), timeout, err) }
	}
	call := map[string]func(h *health.Health){
		"answered": func(h *health.Health) { h.Answered() },
		"late":     failed(time.Second, pgdb.ErrNoAnswer),
		"busy":     failed(time.Second, pgdb.ErrNotSent),
		"lost":     failed(time.Second, lost),
		"short":    failed(10*time.Millisecond, pgdb.ErrNoAnswer),
		"lost beside others": func(h *health.Health) {
			sent := time.Now()
			time.Sleep(time.Millisecond)
			h.Answered()
			_ = h.Failed(sent, time.Second, lost)
		},
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
				if got != want {
					t.Errorf("%v, %s: state = %s, want %s", test.calls, when, got, want)
				}
			}
			for _, name := range test.calls {
				call[name](h)
			}
			check("after the calls", test.want)
			if test.want == "answering" {
				return
			}
			answers <- lost
			synctest.Wait()
			check("after a probe that failed", "down")
			time.Sleep(time.Second)
			answers <- nil
			synctest.Wait()
			check("after a probe that was answered", "answering")
		})
	}
}
