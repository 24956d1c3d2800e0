package pgwire

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TestMaxConns bounds the connections, and every call gets one.
func TestMaxConns(t *testing.T) {
	f, dsn := newFake(t, func(s *fakeSession) {
		for s.request() != "" {
			if n := s.server.open.Load(); n > 3 {
				s.server.t.Errorf("%d connections", n)
			}
			time.Sleep(time.Millisecond) // so that calls wait for connections
			s.write(msgParsed + msgAnswered)
		}
	})
	p := open(t, dsn, Options{MaxConns: 3})
	var wg sync.WaitGroup
	for i := 0; i < 30; i++ {
		wg.Go(func() {
			for j := 0; j < 20; j++ {
				succeeds(t, p, stmt("A"))
			}
		})
	}
	wg.Wait()
	if n := f.accepted.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
	if p.open != 3 || len(p.idle) != 3 || len(p.waiting) != 0 || len(p.dials) != 0 {
		t.Errorf("%d open, %d idle, %d waiting, %d dials", p.open, len(p.idle), len(p.waiting), len(p.dials))
	}
}

// TestCloseWhileConnecting leaves nothing behind.
func TestCloseWhileConnecting(t *testing.T) {
	f, dsn := newRawFake(t, waitForEnd)
	p := open(t, dsn, Options{})
	done := make(chan error)
	go func() { done <- p.Run(context.Background(), []*pgdb.Statement{stmt("A")}) }()
	await.Within(t, longTime, "it connects", func() bool { return f.open.Load() == 1 })
	p.Close()
	if err := <-done; err == nil {
		t.Error("no error")
	}
	await.Within(t, longTime, "it is closed", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return f.open.Load() == 0 && p.open == 0 })
}
