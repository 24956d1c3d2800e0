package pgwire

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestOneWrite: a pipeline is one request, prepared once a connection.
func TestOneWrite(t *testing.T) {
	var kinds []string
	_, dsn := newFake(t, func(s *fakeSession) {
		for i := 0; i < 4; i++ {
			kinds = append(kinds, s.request())
		}
		// All of it is here before anything is answered.
		s.write(msgAnswer + msgAnswer + msgAnswered + msgAnswer)
		kinds = append(kinds, s.request())
		s.write(msgAnswered)
		waitForEnd(s)
	})
	p := open(t, dsn, Options{})
	a, b, c, d := stmt("A", "x"), stmt("B"), stmt("A", "y"), stmt("C", int64(1))
	run(t, p, a, b, c, d)
	run(t, p, stmt("A", "z"))
	if got := strings.Join(kinds, " "); got != "PBDES PBDES BES PBDES BES" {
		t.Errorf("messages %s", got)
	}
}

// TestErrorInTheMiddle leaves the other statements alone.
func TestErrorInTheMiddle(t *testing.T) {
	f, dsn := newFake(t, func(s *fakeSession) {
		s.request()
		s.request()
		s.request()
		s.write(msgAnswer + msgParsed + msgBound + msgError("ERROR", "22012", "division by zero") + msgReady + msgAnswer)
		serveAll(s)
	})
	p := open(t, dsn, Options{})
	a, b, c := stmt("A"), stmt("B"), stmt("C")
	if err := p.Run(within(t, time.Second), []*ratelimit.Statement{a, b, c}); err != nil {
		t.Fatal(err)
	}
	if a.Err != nil || c.Err != nil || b.Err == nil || b.Err.Error() != "ERROR: division by zero (SQLSTATE 22012)" || b.Code != "22012" {
		t.Errorf("%v, %v (%s), %v", a.Err, b.Err, b.Code, c.Err)
	}
	run(t, p, stmt("D"))
	if n := f.accepted.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// TestLossInTheMiddle: what was answered is known, the rest is not, and nothing
// runs twice.
func TestLossInTheMiddle(t *testing.T) {
	for _, c := range []struct{ name, then, want string }{
		{"the end", "", "closed the connection"},
		{"a truncated answer", msgParsed + msgBound + "C\x00\x00\x00\xffSEL", "closed the connection"},
		{"done, not committed", msgParsed + msgBound + msgDone, "closed the connection"},
		{"a farewell when it had begun", msgParsed + msgBound + msgError("FATAL", "57P01", "bye"), "FATAL: bye (SQLSTATE 57P01)"},
		{"a pooler's farewell", msgError("FATAL", "08P01", "server conn crashed?"), "FATAL: server conn crashed? (SQLSTATE 08P01)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, dsn := newFake(t, func(s *fakeSession) {
				for i := 0; i < 3; i++ {
					s.request()
				}
				s.write(msgAnswer + c.then)
			})
			p := open(t, dsn, Options{})
			all := []*ratelimit.Statement{stmt("A"), stmt("B"), stmt("C")}
			err := p.Run(within(t, time.Second), all)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
			if all[0].Err != nil || all[1].Err == nil || all[2].Err == nil {
				t.Errorf("%v, %v, %v", all[0].Err, all[1].Err, all[2].Err)
			}
			if strings.HasPrefix(c.want, "FATAL") && !strings.Contains(c.want, all[1].Code) {
				t.Errorf("code %q", all[1].Code)
			}
			if n := f.accepted.Load(); n != 1 {
				t.Errorf("%d connections: it was run again", n)
			}
		})
	}
}

// TestFarewell: a server that ends an idle connection and says so, though it
// could not be seen before the statements were sent, did not run them.
func TestFarewell(t *testing.T) {
	for _, code := range []string{"57P01", "57P02", "57P05"} {
		t.Run(code, func(t *testing.T) {
			f, dsn := newFake(t, func(s *fakeSession) {
				for i := 1; ; i++ {
					kinds := s.request()
					switch {
					case kinds == "":
						return
					case s.number <= 2 && i == 4: // the second statement of the second round
						s.write(msgError("FATAL", code, "terminating connection"))
						return
					case kinds[0] == 'P':
						s.write(msgAnswer)
					default:
						s.write(msgAnswered)
					}
				}
			})
			p := open(t, dsn, Options{MaxConns: 1})
			for i := 0; i < 4; i++ {
				run(t, p, stmt("A"), stmt("B"))
			}
			if n := f.accepted.Load(); n != 3 {
				t.Errorf("%s: %d connections", code, n)
			}
		})
	}
}

// TestFarewellForEver: a server that always says goodbye is not asked for ever.
func TestFarewellForEver(t *testing.T) {
	f, dsn := newFake(t, func(s *fakeSession) {
		s.request()
		s.write(msgError("FATAL", "57P01", "terminating connection"))
		waitForEnd(s)
	})
	p := open(t, dsn, Options{})
	st := stmt("A")
	err := p.Run(within(t, 5*time.Second), []*ratelimit.Statement{st})
	if err == nil || st.Err == nil || st.Code != "57P01" || f.accepted.Load() != rounds {
		t.Errorf("%v, %v, %s, %d connections", err, st.Err, st.Code, f.accepted.Load())
	}
}

// TestIdleEnd: a connection that the server closed while it was idle is not used,
// whether it said goodbye or not.
func TestIdleEnd(t *testing.T) {
	for _, farewell := range []string{"", msgError("FATAL", "57P01", "bye"), "\x00", msgNoise + msgError("FATAL", "57P01", "bye"), msgReady, msgNoise} {
		t.Run("after "+strconv.Itoa(len(farewell)), func(t *testing.T) {
			f, dsn := newFake(t, func(s *fakeSession) {
				s.request()
				s.write(msgAnswer)
				s.write(farewell)
			})
			p := open(t, dsn, Options{MaxConns: 1})
			for i := 1; i <= 5; i++ {
				run(t, p, stmt("A"))
				eventually(t, "the end is seen", func() bool {
					p.mu.Lock()
					defer p.mu.Unlock()
					return len(p.idle) == 0 || len(p.idle[0].event) == 1
				})
				if n := int(f.accepted.Load()); n != i {
					t.Errorf("%q: %d connections for %d calls", farewell, n, i)
				}
			}
		})
	}
}

// TestUnaskedFor: a connection on which the server says more than it was asked for
// is not used again, or the next statement would take that for its answer.
func TestUnaskedFor(t *testing.T) {
	f, dsn := newFake(t, func(s *fakeSession) {
		s.request()
		s.write(msgAnswer + msgAnswer)
		waitForEnd(s)
	})
	p := open(t, dsn, Options{})
	for i := 1; i <= 3; i++ {
		run(t, p, stmt("A"))
		if n := int(f.accepted.Load()); n != i {
			t.Errorf("%d connections for %d calls", n, i)
		}
	}
}

// TestLeftInTransaction drops a connection that a statement left in a transaction.
func TestLeftInTransaction(t *testing.T) {
	for _, status := range []string{"T", "E"} {
		t.Run(status, func(t *testing.T) {
			f, dsn := newFake(t, func(s *fakeSession) {
				s.request()
				s.write(msgParsed + msgBound + msgNoData + msgDone + msg('Z', status))
				waitForEnd(s)
			})
			p := open(t, dsn, Options{})
			run(t, p, stmt("BEGIN"))
			run(t, p, stmt("BEGIN"))
			if n := f.accepted.Load(); n != 2 {
				t.Errorf("%s: %d connections", status, n)
			}
		})
	}
}

// TestUnfitStatements are not sent, and the others are.
func TestUnfitStatements(t *testing.T) {
	_, dsn := newFake(t, serveAll)
	p := open(t, dsn, Options{})
	for i := 0; i < 2; i++ {
		good, nul, kind, sql := stmt("A", "x"), stmt("A", "a\x00b"), stmt("B", 1.5), stmt("C\x00")
		many := stmt("D", make([]any, 65536)...)
		if err := p.Run(within(t, time.Second), []*ratelimit.Statement{nul, good, kind, sql, many}); err != nil || good.Err != nil {
			t.Fatal(err, good.Err)
		}
		for st, want := range map[*ratelimit.Statement]string{nul: "parameter $1 holds a NUL byte", kind: "parameter $1 must be", sql: "NUL", many: "65536 parameters"} {
			if st.Err == nil || !strings.Contains(st.Err.Error(), want) {
				t.Errorf("%v; want %q", st.Err, want)
			}
		}
		if nul.Code != "22021" {
			t.Errorf("code %q", nul.Code)
		}
		if err := p.Run(within(t, time.Second), []*ratelimit.Statement{nul}); err != nil || nul.Err == nil {
			t.Errorf("alone: %v, %v", err, nul.Err)
		}
	}
	if err := p.Exec(within(t, time.Second), "\x00"); err == nil {
		t.Error("Exec takes a NUL byte")
	}
	if err := p.Run(context.Background(), nil); err != nil {
		t.Error(err)
	}
}

// TestLargePipeline: a server may answer before it has read everything, and stop
// reading until its answers are taken.
func TestLargePipeline(t *testing.T) {
	_, dsn := newFake(t, func(s *fakeSession) {
		prepared := false
		for s.request() != "" {
			answer := msgBound
			if !prepared {
				answer, prepared = msgParsed+msgBound+msgOneInt, true
			}
			s.write(answer + strings.Repeat(msgRow("12345678"), 100000) + msgDone + msgReady) // 2 MB
		}
	})
	p := open(t, dsn, Options{})
	text := strings.Repeat("x", 1<<20)
	var all []*ratelimit.Statement
	rows := 0
	for i := 0; i < 10; i++ {
		st := stmt("A", text)
		st.Row = func([][]byte) error { rows++; return nil }
		all = append(all, st)
	}
	run(t, p, all...)
	run(t, p, all...)
	if rows != 2*10*100000 {
		t.Errorf("%d rows", rows)
	}
	// The buffers of it are not kept.
	if c := p.idle[0]; cap(c.request) > keptBuffer || len(c.buf) > keptBuffer {
		t.Errorf("kept %d and %d bytes", cap(c.request), len(c.buf))
	}
}

// TestLargePipelineEnds when the server goes, or does not read.
func TestLargePipelineEnds(t *testing.T) {
	for _, c := range []struct {
		name   string
		script func(s *fakeSession)
		want   error
	}{
		{"silence", func(s *fakeSession) { <-s.server.cancels }, context.DeadlineExceeded},
		{"the end", func(s *fakeSession) { s.request() }, nil},
	} {
		_, dsn := newFake(t, c.script)
		p := open(t, dsn, Options{})
		st := stmt("A", strings.Repeat("x", 8<<20))
		start := time.Now()
		err := p.Run(within(t, 300*time.Millisecond), []*ratelimit.Statement{st, st})
		if err == nil || st.Err == nil || c.want != nil && !errors.Is(err, c.want) || time.Since(start) > 10*time.Second {
			t.Errorf("%s: %v, %v after %v", c.name, err, st.Err, time.Since(start))
		}
	}
}

// TestParseFails: where one text fails to parse, the same text later in the
// pipeline has the same error, not that of a missing name; and no pooler is
// suspected.
func TestParseFails(t *testing.T) {
	_, dsn := newFake(t, func(s *fakeSession) {
		for {
			switch kinds := s.request(); {
			case kinds == "":
				return
			case kinds[0] == 'P':
				s.write(msgError("ERROR", "42P01", "no such table") + msgReady)
			default:
				s.write(msgError("ERROR", "26000", "no such statement") + msgReady)
			}
		}
	})
	p := open(t, dsn, Options{})
	for i := 0; i < 5; i++ {
		a, b := stmt("A"), stmt("A")
		if err := p.Run(within(t, time.Second), []*ratelimit.Statement{a, b}); err != nil || a.Code != "42P01" || b.Code != "42P01" {
			t.Errorf("%v, %v, %v", err, a.Err, b.Err)
		}
	}
	if p.strikes != 0 {
		t.Errorf("%d strikes", p.strikes)
	}
}
