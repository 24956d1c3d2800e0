package pgwire

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
)

// After an invalid response, the call fails, and the pool closes the connection.
func TestInvalidResponseClosesConnection(t *testing.T) {
	head := msgParsed + msgBound
	for _, c := range []struct{ name, response, want string }{
		{"nothing", "", "closed the connection"},
		{"length 0", "D\x00\x00\x00\x00", "of 0 bytes, which is not accepted"},
		{"length 17 MiB", "D\x01\x10\x00\x00", "of 17825792 bytes, which is not accepted"},
		{"a long error", "E\x00\x10\x00\x01", "of 1048577 bytes, which is not accepted"},
		{"unknown message", msg('q', "x"), `unexpected message "q" (0x71)`},
		{"row before bind", msgParsed + msgRow("x"), `unexpected message "D"`},
		{"ready without an end", head + msgReady, `unexpected message "Z"`},
		{"row other than described", head + msgOneInt + msgRow("12345678", "x"), "another number of columns"},
		{"description with a count too high", head + msg('T', "\xff\xffn\x00"+field(20)),
			"described its rows"},
		{"text format", head + msg('T', "\x00\x01n\x00"+strings.Repeat("\x00", 18)), "binary format"},
		{"fatal", msgError("FATAL", "XX000", "bad luck"), "FATAL: bad luck (SQLSTATE XX000)"},
		{"an empty error", msg('E', ""), "ERROR:  (SQLSTATE )"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, dsn := newFake(t, func(s *fakeSession) {
				s.request()
				s.request() // unread data would reset the connection
				s.write(c.response)
			})
			p := open(t, dsn, Options{})
			st, after := stmt("SELECT 1"), stmt("SELECT 2")
			err := tryRun(t, p, st, after)
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				strings.Contains(err.Error(), "sEcReT") {
				t.Errorf("Run() = %v, want an error with %q and without the secret", err, c.want)
			}
			if st.Err == nil || after.Err == nil {
				t.Errorf("Err is %v and %v, want two errors", st.Err, after.Err)
			}
			if n := f.accepted.Load(); n != 1 {
				t.Errorf("%d connections, want 1: the statements must not run again", n)
			}
			await.Within(t, testTimeout, "the end of the connection",
				func() bool { return f.open.Load() == 0 })
		})
	}
}

// Messages that a server may send at any time do not change a result, at whatever place of a response they
// arrive. The bytes of the response arrive one by one.
func TestAsynchronousMessagesChangeNoResult(t *testing.T) {
	_, dsn := newRawFake(t, func(s *fakeSession) {
		s.write(msgNoise + msgAuth(0, "") + msg('N', "\x00") + msg('K', "\x00\x00\x00\x07key!") +
			msgReady + msgNoise)
		for n := 0; s.request() != ""; n++ {
			response := ""
			if n == 0 {
				response = msgNoise + msgParsed
			}
			response += msgNoise + msgBound + msgNoise
			if n == 0 {
				response += msgOneInt + msgNoise
			}
			response += msgRow("12345678") + msgNoise + msgRow("NULL") + msgNoise + msgDone + msgNoise +
				msgReady + msgNoise
			for i := range response { // a byte at a time
				s.write(response[i : i+1])
			}
		}
	})
	p := open(t, dsn, Options{MaxConns: 1})
	for i := 0; i < 3; i++ {
		st := stmt("SELECT 1")
		run(t, p, st)
		if got, want := string(st.Result), "\x00\x00\x00\x0812345678\xff\xff\xff\xff"; got != want {
			t.Errorf("round %d: result %q, want %q", i, got, want)
		}
	}
}
