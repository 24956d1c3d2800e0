package pgwire

import (
	"context"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Close ends an attempt to connect, and the call that waits for it fails.
func TestCloseWhileConnecting(t *testing.T) {
	f, dsn := newRawFake(t, waitForEnd)
	p := open(t, dsn, Options{})
	done := make(chan error)
	go func() { done <- p.Run(context.Background(), testTimeout, []*pgdb.Statement{stmt("A")}) }()
	await.Within(t, testTimeout, "a connection attempt", func() bool { return f.open.Load() == 1 })
	p.Close()
	if err := <-done; err == nil {
		t.Error("Run() = nil on a closed pool, want an error")
	}
	await.Within(t, testTimeout, "the end of the connection",
		func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return f.open.Load() == 0 && p.open == 0
		})
}
