package pgwire

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// grace is how late a call may end on a machine that is busy with other tests.
// On time is 50 ms, which one in some must be.
const (
	grace  = 2 * time.Second
	onTime = 50 * time.Millisecond
)

// timed runs one statement that is expected to run out of its time, and returns
// how late it ended.
func timed(t *testing.T, p *Pool, ctx context.Context, want error) (late time.Duration) {
	t.Helper()
	st := stmt("A")
	start := time.Now()
	err := p.Run(ctx, []*ratelimit.Statement{st})
	if !errors.Is(err, want) || !errors.Is(st.Err, want) {
		t.Errorf("%v, %v; want %v", err, st.Err, want)
	}
	if deadline, ok := ctx.Deadline(); ok {
		late = time.Since(deadline)
	}
	if late > grace || time.Since(start) > 2*grace {
		t.Errorf("took %v, %v late", time.Since(start), late)
	}
	return late
}

// TestDeadline: a silent server is left at the deadline, is asked to stop, and
// the connection is not used again.
func TestDeadline(t *testing.T) {
	f, dsn := newFake(t, func(s *fakeSession) {
		if s.number == 1 {
			waitForEnd(s)
			return
		}
		serveAll(s)
	})
	p := open(t, dsn, Options{MaxConns: 1})
	timed(t, p, within(t, 100*time.Millisecond), context.DeadlineExceeded)
	select {
	case key := <-f.cancels:
		if string(key) != "\x00\x00\x00\x07key!" {
			t.Errorf("key %q", key)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("no request to cancel")
	}
	run(t, p, stmt("A"))
	eventually(t, "the first connection is closed", func() bool { return f.open.Load() == 1 })
	if n := f.accepted.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

// TestCancellation ends a call before its deadline, or without one.
func TestCancellation(t *testing.T) {
	f, dsn := newFake(t, waitForEnd)
	p := open(t, dsn, Options{})
	for i := 0; i < 4; i++ {
		ctx, cancel := context.WithCancel(context.Background())
		if i%2 == 1 {
			ctx, cancel = context.WithTimeout(context.Background(), time.Hour)
		}
		go func() {
			time.Sleep(50 * time.Millisecond)
			cancel()
		}()
		if i < 2 {
			timed(t, p, ctx, context.Canceled)
		} else if err := p.Exec(ctx, "A"); !errors.Is(err, context.Canceled) {
			t.Errorf("Exec: %v", err)
		}
		cancel()
	}
	<-f.cancels
	<-f.cancels
}

// TestOver: nothing begins, and nothing is lost, when the time is over already.
func TestOver(t *testing.T) {
	f, dsn := newFake(t, serveAll)
	p := open(t, dsn, Options{})
	run(t, p, stmt("A"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for i := 0; i < 5; i++ {
		timed(t, p, ctx, context.Canceled)
		if err := p.Exec(ctx, "A"); !errors.Is(err, context.Canceled) {
			t.Errorf("Exec: %v", err)
		}
	}
	run(t, p, stmt("A"))
	if n := f.accepted.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// TestOverAtAnyMoment ends calls at the moment at which they begin.
func TestOverAtAnyMoment(t *testing.T) {
	f, dsn := newFake(t, serveAll)
	p := open(t, dsn, Options{MaxConns: 2})
	for i := 0; i < 2000; i++ {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan bool)
		go func() {
			for j := 0; j < i%50; j++ {
				runtime.Gosched()
			}
			cancel()
			close(done)
		}()
		st := stmt("A")
		err := p.Run(ctx, []*ratelimit.Statement{st})
		if err != nil && !errors.Is(err, context.Canceled) || (err == nil) != (st.Err == nil) {
			t.Errorf("%v, %v", err, st.Err)
		}
		<-done
	}
	eventually(t, "all is in order", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.open == len(p.idle) && len(p.waiting) == 0 && int(f.open.Load()) == p.open
	})
}

// TestDrip: a server that sends something all the time is no excuse.
func TestDrip(t *testing.T) {
	_, dsn := newFake(t, func(s *fakeSession) {
		s.request()
		for {
			if _, err := s.Write([]byte(msgNoise)); err != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	p := open(t, dsn, Options{})
	timed(t, p, within(t, 100*time.Millisecond), context.DeadlineExceeded)
}

// TestSlowLogin: one that takes longer than the call goes on without it, and
// serves the next.
func TestSlowLogin(t *testing.T) {
	f, dsn := newRawFake(t, func(s *fakeSession) {
		time.Sleep(300 * time.Millisecond)
		s.welcome()
		serveAll(s)
	})
	p := open(t, dsn, Options{MaxConns: 1})
	timed(t, p, within(t, 50*time.Millisecond), context.DeadlineExceeded)
	run(t, p, stmt("A"))
	if n := f.accepted.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// TestBlackHole: a server that takes connections and says nothing gets a few
// more, one after the other; and one that awakes is used at once.
func TestBlackHole(t *testing.T) {
	for _, conns := range []int{1, 8} {
		t.Run(strconv.Itoa(conns), func(t *testing.T) {
			awake := make(chan struct{})
			f, dsn := newRawFake(t, func(s *fakeSession) {
				select {
				case <-awake:
					s.welcome()
					serveAll(s)
				default:
					waitForEnd(s) // this one stays deaf
				}
			})
			p := open(t, dsn, Options{MaxConns: conns})
			least := grace
			for start := time.Now(); time.Since(start) < 1200*time.Millisecond; {
				least = min(least, timed(t, p, within(t, 50*time.Millisecond), context.DeadlineExceeded))
			}
			if least > onTime {
				t.Errorf("each call was %v late at least", least)
			}
			if n := f.accepted.Load(); n < 2 || n > 6 {
				t.Errorf("%d connections in 1.2 s, of %d", n, conns)
			}
			if n := int(f.open.Load()); n > conns {
				t.Errorf("%d connections open, of %d", n, conns)
			}
			close(awake)
			start := time.Now()
			for p.Run(within(t, 50*time.Millisecond), []*ratelimit.Statement{stmt("A")}) != nil {
				if time.Since(start) > 2*time.Second {
					t.Fatalf("no answer %v after it awoke, with %d connections", time.Since(start), conns)
				}
			}
		})
	}
}

// TestRefused: everybody who waits hears of it at once.
func TestRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	p := open(t, "postgres://me:sEcReT@"+l.Addr().String()+"/db?sslmode=disable", Options{})
	start := time.Now()
	var wg sync.WaitGroup
	for i := 0; i < 20; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			st := stmt("A")
			err := p.Run(within(t, 5*time.Second), []*ratelimit.Statement{st})
			if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), `as user "me" on database "db"`) ||
				strings.Contains(err.Error(), "sEcReT") || st.Err == nil {
				t.Errorf("%v, %v", err, st.Err)
			}
		}()
	}
	wg.Wait()
	if time.Since(start) > time.Second {
		t.Errorf("took %v", time.Since(start))
	}
}

// TestHosts takes the first host that will do, and remembers the dead.
func TestHosts(t *testing.T) {
	deaf, dsnDeaf := newRawFake(t, waitForEnd)
	good, dsnGood := newFake(t, serveAll)
	a, b := hostOf(dsnDeaf), hostOf(dsnGood)
	p := open(t, "postgres://me@"+a+","+b+"/db?sslmode=disable&connect_timeout=1", Options{MaxConns: 4})
	run(t, p, stmt("A"))
	if deaf.accepted.Load() != 1 || good.accepted.Load() != 1 {
		t.Errorf("%d and %d connections", deaf.accepted.Load(), good.accepted.Load())
	}
	start := time.Now()
	p.dropIdle()
	run(t, p, stmt("A"))
	if time.Since(start) > time.Second/2 || deaf.accepted.Load() != 1 {
		t.Errorf("the dead host was waited for again: %v, %d connections", time.Since(start), deaf.accepted.Load())
	}
	// Without connect_timeout too, an address may take only so long where there
	// is another.
	q := open(t, "postgres://me@"+a+","+b+"/db?sslmode=disable", Options{})
	start = time.Now()
	run(t, q, stmt("A"))
	if took := time.Since(start); took < shortAttempt || took > shortAttempt+time.Second {
		t.Errorf("took %v", took)
	}
}

func hostOf(dsn string) string {
	return strings.SplitN(strings.SplitN(dsn, "@", 2)[1], "/", 2)[0]
}

// TestSessionAttributes asks each server what it is.
func TestSessionAttributes(t *testing.T) {
	server := func(readOnly, recovery string) string {
		_, dsn := newFake(t, func(s *fakeSession) {
			for {
				kind, body := s.message()
				switch {
				case kind == 0 || kind == 'X':
					return
				case kind == 'Q' && strings.HasPrefix(string(body), "SHOW transaction_read_only"):
					s.write(msg('T', "\x00\x01n\x00"+field(25)) + msgRow(readOnly) + msgDone + msgReady)
				case kind == 'Q' && strings.HasPrefix(string(body), "SELECT pg_catalog.pg_is_in_recovery()"):
					s.write(msg('T', "\x00\x01n\x00"+field(16)) + msgRow(recovery) + msgDone + msgReady)
				case kind == 'S':
					s.write(msgAnswer)
				}
			}
		})
		return hostOf(dsn)
	}
	primary, standby, readOnlyPrimary := server("off", "f"), server("on", "t"), server("on", "f")
	for _, c := range []struct{ session, hosts, want string }{
		{"any", standby + "," + primary, standby},
		{"read-write", standby + "," + readOnlyPrimary + "," + primary, primary},
		{"read-only", primary + "," + readOnlyPrimary, readOnlyPrimary},
		{"primary", standby + "," + readOnlyPrimary, readOnlyPrimary},
		{"standby", primary + "," + standby, standby},
		{"prefer-standby", primary + "," + standby, standby},
		{"prefer-standby", primary + "," + readOnlyPrimary, primary},
		{"read-write", standby + "," + readOnlyPrimary, ""},
		{"standby", primary, ""},
	} {
		p := open(t, "postgres://me@"+c.hosts+"/db?sslmode=disable&target_session_attrs="+c.session, Options{})
		err := p.Run(within(t, 5*time.Second), []*ratelimit.Statement{stmt("A")})
		if c.want == "" {
			if err == nil || !strings.Contains(err.Error(), "target_session_attrs is "+c.session) {
				t.Errorf("%s: %v", c.session, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.session, err)
		} else if got := p.idle[0].peer.String(); got != c.want {
			t.Errorf("%s of %s: %s, want %s", c.session, c.hosts, got, c.want)
		}
	}
}
