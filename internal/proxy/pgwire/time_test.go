package pgwire

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// ends runs one statement that is expected to end with its context.
func ends(t *testing.T, p *Pool, ctx context.Context, want error) {
	t.Helper()
	st := stmt("A")
	if err := p.Run(ctx, []*pgdb.Statement{st}); !errors.Is(err, want) || !errors.Is(st.Err, want) {
		t.Errorf("%v, %v; want %v", err, st.Err, want)
	}
}

// TestServerThatSendsNoticesForEver: the call ends at its deadline all the same.
func TestServerThatSendsNoticesForEver(t *testing.T) {
	_, dsn := newFake(t, func(s *fakeSession) {
		s.request()
		for {
			if _, err := s.Write([]byte(msgNoise)); err != nil {
				return
			}
			time.Sleep(time.Millisecond) // slower than the client reads
		}
	})
	p := open(t, dsn, Options{})
	ends(t, p, within(t, 100*time.Millisecond), context.DeadlineExceeded)
}

// TestALoginWithoutAnAnswerIsReplaced: the first connection never gets an answer, and the next one
// serves the calls.
func TestALoginWithoutAnAnswerIsReplaced(t *testing.T) {
	f, dsn := newRawFake(t, func(s *fakeSession) {
		if s.number == 1 {
			waitForEnd(s)
			return
		}
		s.welcome()
		serveAll(s)
	})
	p := open(t, dsn, Options{MaxConns: 1})
	await.Within(t, longTime, "an answer", func() bool {
		return p.Run(within(t, 50*time.Millisecond), []*pgdb.Statement{stmt("A")}) == nil
	})
	if n := f.accepted.Load(); n < 2 {
		t.Errorf("%d connections", n)
	}
}

// TestSeveralHosts: the first host that answers is used, and one that did not answer
// is tried last.
func TestSeveralHosts(t *testing.T) {
	deaf, dsnDeaf := newRawFake(t, waitForEnd)
	good, dsnGood := newFake(t, func(s *fakeSession) {
		s.request()
		s.write(msgAnswer + msgError("FATAL", "57P01", "bye"))
	})
	a, b := hostOf(dsnDeaf), hostOf(dsnGood)
	p := open(t, "postgres://me@"+a+","+b+"/db?sslmode=disable&connect_timeout=2", Options{MaxConns: 4})
	run(t, p, stmt("A"))
	if deaf.accepted.Load() != 1 || good.accepted.Load() != 1 {
		t.Errorf("%d and %d connections", deaf.accepted.Load(), good.accepted.Load())
	}
	run(t, p, stmt("A"))
	if n := deaf.accepted.Load(); n != 1 {
		t.Errorf("the dead host was waited for again: %d connections", n)
	}
	// An attempt is bounded without connect_timeout, too.
	q := open(t, "postgres://me@"+a+","+b+"/db?sslmode=disable", Options{})
	began := time.Now()
	if err := q.Run(within(t, 30*time.Second), []*pgdb.Statement{stmt("A")}); err != nil ||
		time.Since(began) < shortAttempt {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func hostOf(dsn string) string {
	return strings.SplitN(strings.SplitN(dsn, "@", 2)[1], "/", 2)[0]
}

// TestSessionAttributes checks which server each target_session_attrs chooses.
func TestSessionAttributes(t *testing.T) {
	server := func(readOnly, recovery bool) string {
		_, dsn := newFake(t, func(s *fakeSession) {
			row := ""
			for {
				kind, body := s.message()
				switch {
				case kind == 0 || kind == 'X':
					return
				case kind == 'P':
					sql := string(body)
					found := strings.Contains(sql, "transaction_read_only") && readOnly ||
						strings.Contains(sql, "pg_is_in_recovery") && recovery
					row = ""
					if found != strings.Contains(sql, "NOT") {
						row = msgRow("12345678")
					}
				case kind == 'S':
					s.write(msgParsed + msgBound + msgOneInt + row + msgDone + msgReady)
				}
			}
		})
		return hostOf(dsn)
	}
	primary, standby, readOnlyPrimary := server(false, false), server(true, true), server(true, false)
	for _, c := range []struct{ session, hosts, want string }{
		{"any", standby + "," + primary, standby},
		{"read-write", standby + "," + readOnlyPrimary + "," + primary, primary},
		{"primary", standby + "," + readOnlyPrimary, readOnlyPrimary},
		{"read-write", standby + "," + readOnlyPrimary, ""},
		{"primary", standby, ""},
	} {
		p := open(t, "postgres://me@"+c.hosts+"/db?sslmode=disable&target_session_attrs="+c.session,
			Options{})
		err := p.Run(within(t, longTime), []*pgdb.Statement{stmt("A")})
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
