package pgwire

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestAnswersThatLie sends what no good server sends. Every one must end the call
// with an error, soon, and the connection with it.
func TestAnswersThatLie(t *testing.T) {
	head := msgParsed + msgBound
	for _, c := range []struct{ name, answer, want string }{
		{"nothing", "", "closed the connection"},
		{"half a header", "1\x00\x00", "closed the connection"},
		{"half a body", msgParsed + "D\x00\x00\x00\x10\x00", "closed the connection"},
		{"length 0", "D\x00\x00\x00\x00", "of 0 bytes, which cannot be"},
		{"length 3", "D\x00\x00\x00\x03", "of 3 bytes, which cannot be"},
		{"length -1", "D\xff\xff\xff\xff", "of 4294967295 bytes, which cannot be"},
		{"length 17 MiB", "D\x01\x10\x00\x00", "of 17825792 bytes, which cannot be"},
		{"a long error", "E\x00\x10\x00\x01", "of 1048577 bytes, which cannot be"},
		{"a long notice", "N\x7f\xff\xff\xff", "which cannot be"},
		{"unknown message", msg('q', "x"), `unexpected message "q" (0x71)`},
		{"unknown byte", msg(0xfe, "x"), `(0xfe)`},
		{"copy", head + msg('G', "\x00\x00\x00"), `unexpected message "G"`},
		{"authentication", msgAuth(0, ""), `unexpected message "R"`},
		{"row before bind", msgParsed + msgRow("x"), `unexpected message "D"`},
		{"row after the end", head + msgDone + msgRow("x"), `unexpected message "D"`},
		{"row after an error", head + msgError("ERROR", "22012", "x") + msgRow("x"), `unexpected message "D"`},
		{"ready without an end", head + msgReady, `unexpected message "Z"`},
		{"ready too long", head + msgDone + msg('Z', "II"), `unexpected message "Z"`},
		{"ready too short", head + msgDone + msg('Z', ""), `unexpected message "Z"`},
		{"row without a count", head + msg('D', "\x00"), "lengths are wrong"},
		{"row with a count too high", head + msg('D', "\x00\x02\x00\x00\x00\x01x"), "lengths are wrong"},
		{"row with a count too low", head + msg('D', "\x00\x01\x00\x00\x00\x01x\x00\x00\x00\x01x"), "lengths are wrong"},
		{"row with a huge count", head + msg('D', "\xff\xff"), "lengths are wrong"},
		{"column too long", head + msg('D', "\x00\x01\x00\x00\x00\x02x"), "lengths are wrong"},
		{"column of length -2", head + msg('D', "\x00\x01\xff\xff\xff\xfe"), "lengths are wrong"},
		{"row other than described", head + msgOneInt + msgRow("12345678", "x"), "another number of columns"},
		{"row though there is none", head + msgNoData + msgRow("x"), "another number of columns"},
		{"description empty", head + msg('T', ""), "described its rows"},
		{"description with a count too high", head + msg('T', "\xff\xffn\x00"+field(20)), "described its rows"},
		{"description with a count too low", head + msg('T', "\x00\x00n\x00"+field(20)), "described its rows"},
		{"description without an end", head + msg('T', "\x00\x01nnnnnnnnnnnnnnnnnnnnnnnnnnnn"), "described its rows"},
		{"text format", head + msg('T', "\x00\x01n\x00"+strings.Repeat("\x00", 18)), "binary format"},
		{"fatal", msgError("FATAL", "XX000", "bad luck"), "FATAL: bad luck (SQLSTATE XX000)"},
		{"panic", head + msgError("PANIC", "XX000", "bad luck"), "PANIC: bad luck"},
		{"an empty error and the end", msg('E', ""), "closed the connection"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, dsn := newFake(t, func(s *fakeSession) {
				s.request()
				s.request() // or what is unread would reset the connection
				s.write(c.answer)
			})
			p := open(t, dsn, Options{})
			st, after := stmt("SELECT 1"), stmt("SELECT 2")
			err := p.Run(within(t, 5*time.Second), []*ratelimit.Statement{st, after})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "sEcReT") {
				t.Errorf("%v; want %q", err, c.want)
			}
			if st.Err == nil || after.Err == nil {
				t.Errorf("statements: %v, %v", st.Err, after.Err)
			}
			if n := f.accepted.Load(); n != 1 {
				t.Errorf("%d connections: it was run again", n)
			}
			eventually(t, "the connection is closed", func() bool { return f.open.Load() == 0 })
		})
	}
}

// TestAnswersWithNoise puts what may come at any time into every place.
func TestAnswersWithNoise(t *testing.T) {
	_, dsn := newRawFake(t, func(s *fakeSession) {
		s.write(msgNoise + msgAuth(0, "") + msg('N', "\x00") + msg('K', "\x00\x00\x00\x07key!") + msgReady + msgNoise)
		for n := 0; s.request() != ""; n++ {
			answer := ""
			if n == 0 {
				answer = msgNoise + msgParsed
			}
			answer += msgNoise + msgBound + msgNoise
			if n == 0 {
				answer += msgOneInt + msgNoise
			}
			answer += msgRow("12345678") + msgNoise + msgRow("NULL") + msgNoise + msgDone + msgNoise + msgReady + msgNoise
			for i := range answer { // a byte at a time
				s.write(answer[i : i+1])
			}
		}
	})
	p := open(t, dsn, Options{MaxConns: 1})
	for i := 0; i < 3; i++ {
		var rows [][][]byte
		st := stmt("SELECT 1")
		st.Row = collect(&rows)
		run(t, p, st)
		if got := fmt.Sprintf("%q", rows); got != `[["12345678"] [""]]` || rows[1][0] != nil {
			t.Errorf("round %d: %s", i, got)
		}
	}
}

// TestAnswersOfRows mixes rows that look alike with others, in pieces of any size.
func TestAnswersOfRows(t *testing.T) {
	description := msg('T', "\x00\x02a\x00"+field(20)+"b\x00"+field(23))
	rows := msgRow("aaaaaaaa", "bbbb") + msgRow("cccccccc", "NULL") + msgRow("NULL", "dddd") + msgRow("eeeeeeee", "ffff") + msgRow("NULL", "NULL") +
		strings.Repeat(msgRow("gggggggg", "hhhh"), 3000)
	want := fmt.Sprintf("%q", [][]string{{"aaaaaaaa", "bbbb"}, {"cccccccc", ""}, {"", "dddd"}, {"eeeeeeee", "ffff"}, {"", ""}})
	for _, piece := range []int{1 << 20, 1000, 29, 28, 27, 7} {
		t.Run(fmt.Sprint(piece), func(t *testing.T) {
			_, dsn := newFake(t, answering(description, rows, piece))
			p := open(t, dsn, Options{})
			for i := 0; i < 2; i++ {
				var got [][][]byte
				st := stmt("SELECT")
				st.Row = collect(&got)
				run(t, p, st)
				if len(got) != 3005 || fmt.Sprintf("%q", got[:5]) != want {
					t.Errorf("pieces of %d, round %d: %d rows, %q", piece, i, len(got), got[:5])
				}
				for _, row := range got[5:] {
					if string(row[0]) != "gggggggg" || string(row[1]) != "hhhh" {
						t.Fatalf("%q", row)
					}
				}
				if got[1][1] != nil || got[2][0] != nil || got[4][1] != nil {
					t.Error("NULL is not nil")
				}
			}
			p.Close()
		})
	}
}

// TestRowErrors lets Row say no: the rest is not shown to it, and the statement
// and the connection are otherwise fine.
func TestRowErrors(t *testing.T) {
	f, dsn := newFake(t, func(s *fakeSession) {
		for n := 0; s.request() != ""; n++ {
			answer := msgBound
			if n == 0 {
				answer = msgParsed + msgBound + msgOneInt
			}
			s.write(answer + msgRow("12345678") + msgRow("12345678") + msgRow("NULL") + msgDone + msgReady)
		}
	})
	p := open(t, dsn, Options{})
	for i := 0; i < 3; i++ {
		calls := 0
		st := stmt("SELECT")
		st.Row = func([][]byte) error { calls++; return errTest }
		if err := p.Run(within(t, time.Second), []*ratelimit.Statement{st}); err != nil || !errors.Is(st.Err, errTest) || st.Code != "" || calls != 1 {
			t.Errorf("%v, %v, %q, %d calls", err, st.Err, st.Code, calls)
		}
	}
	if n := f.accepted.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// TestRowPanics: a panic passes through, and takes its connection with it.
func TestRowPanics(t *testing.T) {
	f, dsn := newFake(t, func(s *fakeSession) {
		s.request()
		s.write(msgParsed + msgBound + msgOneInt + msgRow("12345678") + msgDone + msgReady)
		waitForEnd(s)
	})
	p := open(t, dsn, Options{MaxConns: 1})
	for i := 0; i < 3; i++ {
		func() {
			defer func() {
				if r := recover(); fmt.Sprint(r) != errTest.Error() {
					t.Errorf("recovered %v", r)
				}
			}()
			st := stmt("SELECT")
			st.Row = func([][]byte) error { panic(errTest) }
			_ = p.Run(within(t, time.Second), []*ratelimit.Statement{st})
		}()
	}
	eventually(t, "all are closed", func() bool { return f.open.Load() == 0 && f.accepted.Load() == 3 })
}
