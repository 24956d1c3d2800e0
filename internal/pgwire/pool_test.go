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

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestLazy: a pool that is not used does not connect.
func TestLazy(t *testing.T) {
	before := runtime.NumGoroutine()
	p, err := Open("postgres://nobody@192.0.2.1:1/db?sslmode=disable", Options{LookupEnv: noEnv})
	if err != nil {
		t.Fatal(err)
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines more", n-before)
	}
	p.Close()
}

// TestBound: there are never more connections than that, and everybody gets one
// in the end.
func TestBound(t *testing.T) {
	f, dsn := newFake(t, func(s *fakeSession) {
		for s.request() != "" {
			if n := s.server.open.Load(); n > 3 {
				s.server.t.Errorf("%d connections", n)
			}
			time.Sleep(time.Millisecond)
			s.write(msgParsed + msgAnswered)
		}
	})
	p := open(t, dsn, Options{MaxConns: 3})
	var wg sync.WaitGroup
	for i := 0; i < 30; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := 0; j < 20; j++ {
				succeeds(t, p, stmt("A"))
			}
		}()
	}
	wg.Wait()
	if n := f.accepted.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
	if p.open != 3 || len(p.idle) != 3 || len(p.waiting) != 0 || len(p.dials) != 0 {
		t.Errorf("%d open, %d idle, %d waiting, %d dials", p.open, len(p.idle), len(p.waiting), len(p.dials))
	}
}

// TestWaiting ends with ctx, and says what it waited for.
func TestWaiting(t *testing.T) {
	release := make(chan struct{})
	_, dsn := newFake(t, func(s *fakeSession) {
		s.request()
		<-release
		s.write(msgAnswer)
		serveAll(s)
	})
	p := open(t, dsn, Options{MaxConns: 1})
	done := make(chan error)
	go func() { done <- p.Run(within(t, 5*time.Second), []*ratelimit.Statement{stmt("A")}) }()
	eventually(t, "the connection is lent", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.open == 1 && len(p.dials) == 0 && len(p.idle) == 0
	})
	st := stmt("A")
	start := time.Now()
	err := p.Run(within(t, 50*time.Millisecond), []*ratelimit.Statement{st})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "none of the 1 connections became free") || st.Err == nil || time.Since(start) > time.Second {
		t.Errorf("%v, %v after %v", err, st.Err, time.Since(start))
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	run(t, p, stmt("A"))
}

// TestLastInFirstOut uses the connection that was used last, so that the others
// may end.
func TestLastInFirstOut(t *testing.T) {
	var used [4]atomic.Int32
	var both sync.WaitGroup
	both.Add(2)
	_, dsn := newFake(t, func(s *fakeSession) {
		for i := 0; s.request() != ""; i++ {
			if i == 0 && s.number <= 2 {
				both.Done()
				both.Wait()
			}
			used[s.number].Add(1)
			s.write(msgParsed + msgAnswered)
		}
	})
	p := open(t, dsn, Options{IdleTimeout: 300 * time.Millisecond})
	var wg sync.WaitGroup
	for i := 0; i < 2; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			succeeds(t, p, stmt("A"))
		}()
	}
	wg.Wait()
	for start := time.Now(); time.Since(start) < 900*time.Millisecond; {
		run(t, p, stmt("A"))
	}
	a, b := used[1].Load(), used[2].Load()
	if a != 1 && b != 1 || a+b < 11 {
		t.Errorf("used %d and %d times", a, b)
	}
	eventually(t, "the other one ended", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.open == 1 })
}

// TestIdleTimeout closes all, with a goodbye, and no timer stays behind.
func TestIdleTimeout(t *testing.T) {
	var goodbyes atomic.Int32
	f, dsn := newFake(t, func(s *fakeSession) {
		s.request()
		s.write(msgAnswer)
		if kind, _ := s.message(); kind == 'X' {
			goodbyes.Add(1)
		}
	})
	p := open(t, dsn, Options{IdleTimeout: 50 * time.Millisecond})
	run(t, p, stmt("A"))
	eventually(t, "it is closed, and nothing waits for more", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return f.open.Load() == 0 && p.open == 0 && p.reaper == nil && goodbyes.Load() == 1
	})
	run(t, p, stmt("A"))
}

func TestMaxLifetime(t *testing.T) {
	f, dsn := newFake(t, serveAll)
	p := open(t, dsn, Options{MaxLifetime: 100 * time.Millisecond})
	start := time.Now()
	eventually(t, "the fifth connection", func() bool { run(t, p, stmt("A")); return f.accepted.Load() == 5 })
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("the fifth connection after %v", took)
	}
	eventually(t, "the old ones are closed", func() bool { return f.open.Load() == 1 })
}

// TestHealthCheck asks a connection that was idle for long, and leaves it where
// it does not answer.
func TestHealthCheck(t *testing.T) {
	var checks atomic.Int32
	f, dsn := newFake(t, func(s *fakeSession) {
		for {
			switch kinds := s.request(); {
			case kinds == "":
				return
			case kinds == "S":
				if checks.Add(1) == 2 {
					waitForEnd(s) // forgotten by a firewall
					return
				}
				s.write(msgNoise + msgReady)
			case kinds[0] == 'P':
				s.write(msgAnswer)
			default:
				s.write(msgAnswered)
			}
		}
	})
	p := open(t, dsn, Options{HealthCheckAfter: 20 * time.Millisecond, MaxConns: 1})
	run(t, p, stmt("A"))
	if n := checks.Load(); n != 0 {
		t.Errorf("%d checks", n)
	}
	time.Sleep(40 * time.Millisecond)
	run(t, p, stmt("A"))
	if n := checks.Load(); n != 1 || f.accepted.Load() != 1 {
		t.Errorf("%d checks, %d connections", n, f.accepted.Load())
	}
	time.Sleep(40 * time.Millisecond)
	start := time.Now()
	if err := p.Run(within(t, 2*time.Second), []*ratelimit.Statement{stmt("A")}); err != nil {
		t.Errorf("a connection that does not answer: %v", err)
	}
	if took := time.Since(start); took < 990*time.Millisecond || f.accepted.Load() != 2 {
		t.Errorf("took %v, %d connections", took, f.accepted.Load())
	}
}

// TestClose ends what is idle, fails who waits, and lets the rest finish.
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
	go func() { busy <- p.Run(within(t, 5*time.Second), []*ratelimit.Statement{stmt("A")}) }()
	eventually(t, "the connection is lent", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.open == 1 && len(p.dials) == 0
	})
	go func() { waits <- p.Run(within(t, 5*time.Second), []*ratelimit.Statement{stmt("A")}) }()
	eventually(t, "one waits", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.waiting) == 1 })
	p.Close()
	p.Close()
	if err := <-waits; err == nil || !strings.Contains(err.Error(), "the pool is closed") {
		t.Errorf("who waited: %v", err)
	}
	close(release)
	if err := <-busy; err != nil {
		t.Errorf("who was busy: %v", err)
	}
	st := stmt("A")
	if err := p.Run(context.Background(), []*ratelimit.Statement{st}); err == nil || st.Err == nil {
		t.Error("Run after Close")
	}
	if err := p.Exec(context.Background(), "A"); err == nil {
		t.Error("Exec after Close")
	}
	eventually(t, "all connections are closed", func() bool { return f.open.Load() == 0 && p.open == 0 })
	eventually(t, "all goroutines ended", func() bool { return runtime.NumGoroutine() <= before+1 })
}

// TestCloseWhileConnecting leaves nothing behind.
func TestCloseWhileConnecting(t *testing.T) {
	f, dsn := newRawFake(t, waitForEnd)
	p := open(t, dsn, Options{})
	done := make(chan error)
	go func() { done <- p.Run(context.Background(), []*ratelimit.Statement{stmt("A")}) }()
	eventually(t, "it connects", func() bool { return f.open.Load() == 1 })
	p.Close()
	if err := <-done; err == nil {
		t.Error("no error")
	}
	eventually(t, "it is closed", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return f.open.Load() == 0 && p.open == 0 })
}

// TestTooManyConnections: where the server has no room for one more connection,
// those that there are serve everybody.
func TestTooManyConnections(t *testing.T) {
	f, dsn := newRawFake(t, func(s *fakeSession) {
		if s.number > 2 {
			s.write(msgError("FATAL", "53300", "too many clients"))
			return
		}
		s.welcome()
		for s.request() != "" {
			time.Sleep(time.Millisecond)
			s.write(msgParsed + msgAnswered)
		}
	})
	p := open(t, dsn, Options{MaxConns: 8})
	start := time.Now()
	var wg sync.WaitGroup
	for i := 0; i < 10; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := 0; j < 20; j++ {
				succeeds(t, p, stmt("A"))
			}
		}()
	}
	wg.Wait()
	if n := f.accepted.Load(); n < 3 || time.Duration(n) > 5+time.Since(start)/pace {
		t.Errorf("%d connections", n)
	}
}

// TestChaos ends connections, calls and servers at all times, and counts in the
// end.
func TestChaos(t *testing.T) {
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
				time.Sleep(15 * time.Millisecond)
			}
			s.write(msgParsed + msgAnswered)
		}
	})
	p := open(t, dsn, Options{MaxConns: 4, IdleTimeout: 10 * time.Millisecond, MaxLifetime: 50 * time.Millisecond, HealthCheckAfter: time.Millisecond})
	var wg sync.WaitGroup
	var good, bad atomic.Int32
	for i := 0; i < 8; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := 0; j < 100; j++ {
				st := stmt("A")
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
				err := p.Run(ctx, []*ratelimit.Statement{st})
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
		}()
	}
	wg.Wait()
	if good.Load() == 0 || bad.Load() == 0 {
		t.Errorf("%d good, %d bad", good.Load(), bad.Load())
	}
	p.Close()
	eventually(t, "all is closed", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return f.open.Load() == 0 && p.open == 0 && p.cancels == 0 && len(p.dials) == 0
	})
}
