package pgwire

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TestConnectionLostDuringAPipeline: the outcome of answered transactions is known,
// that of the others is not, and nothing runs twice.
func TestConnectionLostDuringAPipeline(t *testing.T) {
	for _, c := range []struct {
		name   string
		joined bool // the second and the third statement
		then   string
		want   string
	}{
		{"the end", false, "", "closed the connection"},
		{"a truncated answer", false, msgParsed + msgBound + "C\x00\x00\x00\xffSEL", "closed the connection"},
		{"done, not committed", false, msgParsed + msgBound + msgDone, "closed the connection"},
		{"the session ends when a statement has begun", false,
			msgParsed + msgBound + msgError("FATAL", "57P01", "bye"), "FATAL: bye (SQLSTATE 57P01)"},
		{"a pooler ends the session", false, msgError("FATAL", "08P01", "server conn crashed?"),
			"FATAL: server conn crashed? (SQLSTATE 08P01)"},
		{"within a transaction", true, msgParsed + msgBound + msgDone, "closed the connection"},
		{"the session ends within a transaction", true, msgParsed + msgBound + msgDone + msgError("FATAL",
			"57P01", "bye"), "FATAL: bye (SQLSTATE 57P01)"},
		{"before the commit", true, msgParsed + msgBound + msgDone + msgParsed + msgBound + msgDone,
			"closed the connection"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, dsn := newFake(t, func(s *fakeSession) {
				s.request()
				s.request()
				if !c.joined {
					s.request()
				}
				s.write(msgAnswer + c.then)
			})
			p := open(t, dsn, Options{})
			all := []*pgdb.Statement{stmt("A"), stmt("B"), stmt("C")}
			all[1].Joined = c.joined
			err := p.Run(within(t, longTime), all)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
			if all[0].Err != nil || all[1].Err == nil || all[2].Err == nil ||
				errors.Is(all[1].Err, pgdb.ErrRolledBack) {
				t.Errorf("the errors are %v, %v, %v; want nil for the first, and its own for the second",
					all[0].Err, all[1].Err, all[2].Err)
			}
			if strings.HasPrefix(c.want, "FATAL") && !strings.Contains(c.want, all[1].Code) {
				t.Errorf("the code is %q, want that of %q", all[1].Code, c.want)
			}
			if n := f.accepted.Load(); n != 1 {
				t.Errorf("%d connections, want 1: the statements must not run again", n)
			}
		})
	}
}

// TestServerThatEndsEverySession checks that the number of attempts is bounded.
func TestServerThatEndsEverySession(t *testing.T) {
	f, dsn := newFake(t, func(s *fakeSession) {
		s.request()
		s.write(msgError("FATAL", "57P01", "terminating connection"))
		waitForEnd(s)
	})
	p := open(t, dsn, Options{})
	st := stmt("A")
	err := p.Run(within(t, longTime), []*pgdb.Statement{st})
	if err == nil || st.Err == nil || st.Code != "57P01" || f.accepted.Load() != maxAttempts {
		t.Errorf("got %v, %v, code %s after %d connections; want code 57P01 after %d", err, st.Err, st.Code,
			f.accepted.Load(), maxAttempts)
	}
}

// TestConnectionsThatAreNotUsedAgain: with more messages than the request asked for, which the next
// statement would take for its answer, and those that a statement left in a transaction.
func TestConnectionsThatAreNotUsedAgain(t *testing.T) {
	for name, answer := range map[string]string{
		"messages after the answer": msgAnswer + msgAnswer,
		"left in a transaction":     msgParsed + msgBound + msgNoData + msgDone + msg('Z', "T"),
		"left in a failed one":      msgParsed + msgBound + msgNoData + msgDone + msg('Z', "E"),
	} {
		t.Run(name, func(t *testing.T) {
			f, dsn := newFake(t, func(s *fakeSession) {
				s.request()
				s.write(answer)
				waitForEnd(s)
			})
			p := open(t, dsn, Options{})
			for i := 1; i <= 3; i++ {
				run(t, p, stmt("BEGIN"))
				if n := int(f.accepted.Load()); n != i {
					t.Errorf("%d connections for %d calls", n, i)
				}
			}
		})
	}
}

// TestLargePipelineEnds when the server goes, or does not read.
func TestLargePipelineEnds(t *testing.T) {
	for _, c := range []struct {
		name   string
		script func(s *fakeSession, cancel func())
		want   error
	}{
		{"silence", func(s *fakeSession, cancel func()) {
			_, _ = s.Read(make([]byte, 1))
			cancel()
			<-s.server.cancels
		}, context.Canceled},
		{"the end", func(s *fakeSession, _ func()) { s.request() }, nil},
	} {
		ctx, cancel := context.WithCancel(within(t, longTime))
		_, dsn := newFake(t, func(s *fakeSession) { c.script(s, cancel) })
		p := open(t, dsn, Options{})
		st := stmt("A", strings.Repeat("x", 8<<20))
		err := p.Run(ctx, []*pgdb.Statement{st, st})
		if err == nil || st.Err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v", c.name, err, st.Err)
		}
	}
}

// TestParseFailsForSeveralStatements: where one text fails to parse, the same text later in the
// pipeline has the same error, not that of a missing name; and no pooler is
// suspected.
func TestParseFailsForSeveralStatements(t *testing.T) {
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
		if err := p.Run(within(t, longTime), []*pgdb.Statement{a, b}); err != nil || a.Code != "42P01" ||
			b.Code != "42P01" {
			t.Errorf("%v, %v, %v", err, a.Err, b.Err)
		}
	}
	if p.lost != 0 {
		t.Errorf("%d times lost", p.lost)
	}
}
