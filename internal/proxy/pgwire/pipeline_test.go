package pgwire

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// If the connection ends within a pipeline, transactions with a response keep their result, and all later
// transactions fail. No statement runs twice.
func TestConnectionLostInPipeline(t *testing.T) {
	for _, c := range []struct {
		name   string
		joined bool   // the second and the third statement
		then   string // sent after the response to the first statement
		want   string
	}{
		{name: "the end", want: "closed the connection"},
		{name: "done, not committed",
			then: msgParsed + msgBound + msgDone, want: "closed the connection"},
		{name: "the session ends when a statement has started",
			then: msgParsed + msgBound + msgError("FATAL", "57P01", "bye"),
			want: "FATAL: bye (SQLSTATE 57P01)"},
		{name: "a pooler ends the session",
			then: msgError("FATAL", "08P01", "server conn crashed?"),
			want: "FATAL: server conn crashed? (SQLSTATE 08P01)"},
		{name: "within a transaction", joined: true,
			then: msgParsed + msgBound + msgDone, want: "closed the connection"},
		{name: "before the commit", joined: true,
			then: msgParsed + msgBound + msgDone + msgParsed + msgBound + msgDone,
			want: "closed the connection"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, dsn := newFake(t, func(s *fakeSession) {
				s.request()
				s.request()
				if !c.joined {
					s.request()
				}
				s.write(msgFirstResponse + c.then)
			})
			p := open(t, dsn, Options{})
			statements := []*pgdb.Statement{stmt("A"), stmt("B"), stmt("C")}
			statements[1].Joined = c.joined
			err := tryRun(t, p, statements...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Run() = %v, want %q", err, c.want)
			}
			if err := statements[0].Err; err != nil {
				t.Errorf("the first statement: error %v, want nil", err)
			}
			if err := statements[1].Err; err == nil || errors.Is(err, pgdb.ErrRolledBack) {
				t.Errorf("the second statement: error %v, want its own", err)
			}
			if statements[2].Err == nil {
				t.Error("the third statement: no error, want one")
			}
			code := statements[1].Code
			if strings.HasPrefix(c.want, "FATAL") && !strings.Contains(c.want, code) {
				t.Errorf("code %q, want the code in %q", code, c.want)
			}
			check.Equal(t, "connections", f.accepted.Load(), 1)
		})
	}
}

// A statement is sent at most four times if the server ends each session before the statement runs.
func TestAttemptsAreBounded(t *testing.T) {
	f, dsn := newFake(t, func(s *fakeSession) {
		s.request()
		s.write(msgError("FATAL", "57P01", "terminating connection"))
		waitForEnd(s)
	})
	p := open(t, dsn, Options{})
	st := stmt("A")
	const maxAttempts = 4
	err := tryRun(t, p, st)
	if err == nil || st.Err == nil || st.Code != "57P01" {
		t.Errorf("Run() = %v, Err %v, code %s; want code 57P01", err, st.Err, st.Code)
	}
	check.Equal(t, "connections", f.accepted.Load(), maxAttempts)
}

// A connection is closed after a call if it has unread messages, which the next statement would read as its
// response, or if a statement left it in a transaction.
func TestDirtyConnectionsAreClosed(t *testing.T) {
	for name, response := range map[string]string{
		"messages after the response": msgFirstResponse + msgFirstResponse,
		"left in a transaction":       msgParsed + msgBound + msgNoData + msgDone + msg('Z', "T"),
		"left in a failed one":        msgParsed + msgBound + msgNoData + msgDone + msg('Z', "E"),
	} {
		t.Run(name, func(t *testing.T) {
			f, dsn := newFake(t, func(s *fakeSession) {
				s.request()
				s.write(response)
				waitForEnd(s)
			})
			p := open(t, dsn, Options{})
			for i := 1; i <= 3; i++ {
				run(t, p, stmt("BEGIN"))
				check.Equal(t, "connections, one a call", int(f.accepted.Load()), i)
			}
		})
	}
}

// A pipeline that is larger than the buffers of the network ends, even if the server closes the connection or
// does not read.
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
		ctx, cancel := context.WithCancel(t.Context())
		_, dsn := newFake(t, func(s *fakeSession) { c.script(s, cancel) })
		p := open(t, dsn, Options{})
		st := stmt("A", strings.Repeat("x", 8<<20))
		err := p.Run(ctx, testTimeout, []*pgdb.Statement{st, st})
		if err == nil || st.Err == nil {
			t.Errorf("%s: Run() = %v, Err %v; want errors", c.name, err, st.Err)
		}
		if c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: Run() = %v, want %v", c.name, err, c.want)
		}
	}
}

// If a text fails to parse, each statement with this text in the pipeline gets that error. The server
// prepared no statement, but that does not count as the loss of a prepared statement.
func TestRepeatedParseError(t *testing.T) {
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
		err := tryRun(t, p, a, b)
		if err != nil || a.Code != "42P01" || b.Code != "42P01" {
			t.Errorf("Run() = %v, codes %q and %q; want nil and 42P01 twice", err, a.Code, b.Code)
		}
	}
	check.Equal(t, "lost prepared statements", p.runner.Lost, 0)
}
