package pgwire

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// A server that sends notices without end does not keep a call beyond its timeout.
func TestEndlessNoticesEndAtTimeout(t *testing.T) {
	_, dsn := newFake(t, func(s *fakeSession) {
		s.request()
		for {
			if _, err := s.Write([]byte(msgNoise)); err != nil {
				return
			}
			time.Sleep(time.Millisecond) // slower than the client reads
		}
	})
	st := stmt("A")
	err := open(t, dsn, Options{}).Run(t.Context(), 100*time.Millisecond, []*pgdb.Statement{st})
	if !errors.Is(err, pgdb.ErrNoAnswer) || st.Err == nil {
		t.Errorf("Run() = %v, Err %v; want %v", err, st.Err, pgdb.ErrNoAnswer)
	}
}

// If the server never responds to a login, a second connection replaces it, even if the pool may have only
// one.
func TestSilentLoginIsReplaced(t *testing.T) {
	f, dsn := newRawFake(t, func(s *fakeSession) {
		if s.number == 1 {
			waitForEnd(s)
			return
		}
		s.welcome()
		serveAll(s)
	})
	p := open(t, dsn, Options{MaxConns: 1})
	await.Within(t, testTimeout, "a response", func() bool {
		return p.Run(t.Context(), 50*time.Millisecond, []*pgdb.Statement{stmt("A")}) == nil
	})
	if n := f.accepted.Load(); n < 2 {
		t.Errorf("%d connections, want 2 or more", n)
	}
}

// A pool uses the first host that responds, and from then on tries a silent host last.
func TestPoolUsesFirstHostThatResponds(t *testing.T) {
	silent, dsnSilent := newRawFake(t, waitForEnd)
	good, dsnGood := newFake(t, func(s *fakeSession) {
		s.request()
		s.write(msgFirstResponse + msgError("FATAL", "57P01", "bye"))
	})
	a, b := hostOf(dsnSilent), hostOf(dsnGood)
	p := open(t, "postgres://me@"+a+","+b+"/db?sslmode=disable&connect_timeout=2", Options{MaxConns: 4})
	run(t, p, stmt("A"))
	if silent.accepted.Load() != 1 || good.accepted.Load() != 1 {
		t.Errorf("%d and %d connections, want 1 and 1", silent.accepted.Load(), good.accepted.Load())
	}
	run(t, p, stmt("A"))
	if n := silent.accepted.Load(); n != 1 {
		t.Errorf("%d connections to the silent host, want 1", n)
	}
	// Without connect_timeout, shortAttempt bounds an attempt.
	q := open(t, "postgres://me@"+a+","+b+"/db?sslmode=disable", Options{})
	start := time.Now()
	err := q.Run(t.Context(), 30*time.Second, []*pgdb.Statement{stmt("A")})
	if elapsed := time.Since(start); err != nil || elapsed < shortAttempt {
		t.Errorf("Run() = %v after %v, want nil after %v", err, elapsed, shortAttempt)
	}
}

func hostOf(dsn string) string {
	return strings.SplitN(strings.SplitN(dsn, "@", 2)[1], "/", 2)[0]
}

// target_session_attrs selects the first host of the required kind. If no host is of that kind, the call
// fails.
func TestSessionAttributesChooseHost(t *testing.T) {
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
					matches := strings.Contains(sql, "transaction_read_only") && readOnly ||
						strings.Contains(sql, "pg_is_in_recovery") && recovery
					row = ""
					if matches != strings.Contains(sql, "NOT") {
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
		err := tryRun(t, p, stmt("A"))
		if c.want == "" {
			if err == nil || !strings.Contains(err.Error(), "target_session_attrs="+c.session) {
				t.Errorf("%s of %s: error %v, want one about the session", c.session, c.hosts, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s of %s: error %v, want nil", c.session, c.hosts, err)
		} else if got := p.idle[0].peer.String(); got != c.want {
			t.Errorf("%s of %s: connected to %s, want %s", c.session, c.hosts, got, c.want)
		}
	}
}
