package pgwire

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// poolerScript behaves like a transaction pooler without support for prepared
// statements: each request meets another server, out of a few.
func poolerScript(servers int, named *atomic.Int32) func(*fakeSession) {
	known := make([]map[string]bool, servers)
	for i := range known {
		known[i] = map[string]bool{}
	}
	turn := 0
	var mu sync.Mutex
	return func(s *fakeSession) {
		for {
			answer, failed := "", false
			mu.Lock()
			turn = (turn + 1) % servers
			mu.Unlock()
			for done := false; !done; {
				kind, body := s.message()
				parts := strings.SplitN(string(body), "\x00", 3)
				switch {
				case kind == 0 || kind == 'X':
					return
				case kind == 'S':
					answer, done = answer+msgReady, true
				case failed:
				case kind == 'P':
					if parts[0] != "" {
						named.Add(1)
						if known[turn][parts[0]] {
							answer, failed = answer+msgError("ERROR", "42P05", "already exists"), true
							continue
						}
						known[turn][parts[0]] = true
					}
					answer += msgParsed
				case kind == 'B':
					if parts[1] != "" && !known[turn][parts[1]] {
						answer, failed = answer+msgError("ERROR", "26000", "does not exist"), true
						continue
					}
					answer += msgBound
				case kind == 'D':
					answer += msgNoData
				case kind == 'E':
					answer += msgDone
				}
			}
			s.write(answer)
		}
	}
}

// TestTransactionPooler: no statement fails, and soon none is prepared.
func TestTransactionPooler(t *testing.T) {
	var named atomic.Int32
	_, dsn := newFake(t, poolerScript(4, &named))
	logged := 0
	p := open(t, dsn, Options{MaxConns: 1, Logger: func(string) { logged++ }})
	for i := 0; i < 20; i++ {
		joined := stmt("B", int64(1))
		joined.Joined = true
		run(t, p, stmt("A"), joined, stmt("C"), stmt("A"))
	}
	if n := named.Load(); n > 16 || logged != 1 {
		t.Errorf("%d named statements, %d lines in the log", n, logged)
	}
}

// TestPoolerThatEndsTheSession, as PgBouncer does if it does not have a statement's name.
func TestPoolerThatEndsTheSession(t *testing.T) {
	f, dsn := newFake(t, func(s *fakeSession) {
		for i := 0; ; i++ {
			switch kinds := s.request(); {
			case kinds == "":
				return
			case kinds == "BES":
				s.write(msgError("FATAL", "08P01", "prepared statement did not exist"))
				return
			default:
				s.write(msgAnswer)
			}
		}
	})
	p := open(t, dsn, Options{MaxConns: 1, Logger: func(string) {}})
	for i := 0; i < 10; i++ {
		run(t, p, stmt("A"))
	}
	if n := f.accepted.Load(); n != 3 {
		t.Errorf("%d connections, want 3", n)
	}
}
