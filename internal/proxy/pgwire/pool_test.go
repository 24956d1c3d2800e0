package pgwire

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
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

// TestWaitForAConnection: a wait ends with its context, and the error says what was
// waited for.
func TestWaitForAConnection(t *testing.T) {
	release := make(chan struct{})
	_, dsn := newFake(t, func(s *fakeSession) {
		s.request()
		<-release
		s.write(msgAnswer)
		serveAll(s)
	})
	p := open(t, dsn, Options{MaxConns: 1})
	done := make(chan error)
	go func() { done <- p.Run(within(t, longTime), []*pgdb.Statement{stmt("A")}) }()
	await.Within(t, longTime, "the connection is in use", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.open == 1 && len(p.dials) == 0 && len(p.idle) == 0
	})
	st := stmt("A")
	err := p.Run(within(t, 50*time.Millisecond), []*pgdb.Statement{st})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "none of the 1 connections became free") || st.Err == nil {
		t.Errorf("%v, %v", err, st.Err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	run(t, p, stmt("A"))
}

// TestClose: idle connections are closed, waiting calls fail, and calls under way
// finish.
func TestClose(t *testing.T) {
	release := make(chan struct{})
	f, dsn := newFake(t, func(s *fakeSession) {
		s.request()
		<-release
		s.write(msgAnswer)
		waitForEnd(s)
	})
	before := runtime.NumGoroutine()
	p := open(t, dsn, Options{MaxConns: 1})
	busy, waits := make(chan error), make(chan error)
	go func() { busy <- p.Run(within(t, longTime), []*pgdb.Statement{stmt("A")}) }()
	await.Within(t, longTime, "the connection is in use", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.open == 1 && len(p.dials) == 0
	})
	go func() { waits <- p.Run(within(t, longTime), []*pgdb.Statement{stmt("A")}) }()
	await.Within(t, longTime, "one waits", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.waiting) == 1 })
	p.Close()
	p.Close()
	if err := <-waits; err == nil || !strings.Contains(err.Error(), "the pool is closed") {
		t.Errorf("the waiting call: %v", err)
	}
	close(release)
	if err := <-busy; err != nil {
		t.Errorf("the call under way: %v", err)
	}
	st := stmt("A")
	if err := p.Run(context.Background(), []*pgdb.Statement{st}); err == nil || st.Err == nil {
		t.Error("Run after Close")
	}
	if err := p.Exec(context.Background(), "A"); err == nil {
		t.Error("Exec after Close")
	}
	await.Within(t, longTime, "all connections are closed", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return f.open.Load() == 0 && p.open == 0 })
	await.Within(t, longTime, "all goroutines ended", func() bool { return runtime.NumGoroutine() <= before+1 })
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

// TestConnectionsEndAtAllTimes ends connections, calls and sessions at random times,
// and then checks that nothing is left.
func TestConnectionsEndAtAllTimes(t *testing.T) {
	var requests atomic.Int32
	f, dsn := newFake(t, func(s *fakeSession) {
		for s.request() != "" {
			switch n := requests.Add(1); {
			case n%17 == 0:
				return
			case n%13 == 0:
				s.write(msgError("FATAL", "57P01", "bye"))
				return
			case n%11 == 0:
				time.Sleep(15 * time.Millisecond) // longer than a call has
			}
			s.write(msgParsed + msgAnswered)
		}
	})
	p := open(t, dsn+"&pool_max_conn_idle_time=10ms&pool_max_conn_lifetime=50ms", Options{MaxConns: 4})
	var wg sync.WaitGroup
	var good, bad atomic.Int32
	for i := 0; i < 8; i++ {
		wg.Go(func() {
			for j := 0; j < 100; j++ {
				st := stmt("A")
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
				err := p.Run(ctx, []*pgdb.Statement{st})
				cancel()
				switch {
				case (err == nil) != (st.Err == nil):
					t.Errorf("%v, but %v", err, st.Err)
				case err == nil:
					good.Add(1)
				default:
					bad.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if good.Load() == 0 || bad.Load() == 0 {
		t.Errorf("%d good, %d bad", good.Load(), bad.Load())
	}
	p.Close()
	await.Within(t, longTime, "all is closed", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return f.open.Load() == 0 && p.open == 0 && p.cancels == 0 && len(p.dials) == 0
	})
}
