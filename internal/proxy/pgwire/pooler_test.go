package pgwire

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// poolerScript behaves like a transaction pooler without support for prepared statements: each request runs
// in the next of several server sessions. A statement fails if that session has not prepared it. If ends is
// set, the failure ends the client's connection, as with PgBouncer. named counts statements with a name.
func poolerScript(servers int, ends bool, named *atomic.Int32) func(*fakeSession) {
	prepared := make([]map[string]bool, servers)
	for i := range prepared {
		prepared[i] = map[string]bool{}
	}
	turn := 0
	var mu sync.Mutex
	return func(s *fakeSession) {
		for {
			response, failed := "", false
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
					response, done = response+msgReady, true
				case failed:
				case kind == 'P':
					if parts[0] != "" {
						named.Add(1)
						if prepared[turn][parts[0]] {
							response, failed = response+msgError("ERROR", "42P05", "already exists"), true
							continue
						}
						prepared[turn][parts[0]] = true
					}
					response += msgParsed
				case kind == 'B':
					if parts[1] != "" && !prepared[turn][parts[1]] {
						if ends {
							s.write(response + msgError("FATAL", "08P01", "prepared statement did not exist"))
							return
						}
						response, failed = response+msgError("ERROR", "26000", "does not exist"), true
						continue
					}
					response += msgBound
				case kind == 'D':
					response += msgNoData
				case kind == 'E':
					response += msgDone
				}
			}
			s.write(response)
		}
	}
}

// Behind a pooler without prepared statements, no statement fails, and the pool soon stops preparing
// statements.
func TestPoolStopsPreparingBehindPooler(t *testing.T) {
	for _, ends := range []bool{false, true} {
		t.Run(fmt.Sprint("the session ends: ", ends), func(t *testing.T) {
			var named atomic.Int32
			f, dsn := newFake(t, poolerScript(4, ends, &named))
			p := open(t, dsn, Options{MaxConns: 1})
			for i := 0; i < 20; i++ {
				joined := stmt("B", int64(1))
				joined.Joined = true
				run(t, p, stmt("A"), joined, stmt("C"), stmt("A"))
			}
			if n := named.Load(); n > 16 {
				t.Errorf("%d named statements, want at most 16", n)
			}
			if n := f.accepted.Load(); n != 3 {
				t.Errorf("%d connections, want 3", n)
			}
		})
	}
}
