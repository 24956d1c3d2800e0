package pgwire

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// twoNumbers is a result that may be handed over many rows at a time.
var twoNumbers = msg('T', "\x00\x02a\x00"+field(20)+"b\x00"+field(1184))

// answering is a script that describes the rows and sends the same ones again and
// again, in pieces.
func answering(description, rows string, piece int) func(*fakeSession) {
	return func(s *fakeSession) {
		for n := 0; s.request() != ""; n++ {
			answer := msgBound
			if n == 0 {
				answer = msgParsed + msgBound + description
			}
			answer += rows + msgDone + msgReady
			for len(answer) > 0 {
				k := piece
				if k > len(answer) {
					k = len(answer)
				}
				s.write(answer[:k])
				answer = answer[k:]
			}
		}
	}
}

// collectBoth is a Row and a Rows that keep what they see, as msgRow has it, in
// one place: rows counts those that came by Rows.
func collectBoth(t *testing.T, st *ratelimit.Statement, into *[]string, rows *int) {
	st.Row = func(columns [][]byte) error {
		texts := make([]string, len(columns))
		for i, column := range columns {
			texts[i] = string(column)
			if column == nil {
				texts[i] = "NULL"
			}
		}
		*into = append(*into, strings.Join(texts, " "))
		return nil
	}
	st.Rows = func(block []byte) error {
		if len(block) == 0 || len(block)%24 != 0 || len(block) > maxBlock {
			t.Errorf("a block of %d bytes", len(block))
		}
		for at := 0; at+24 <= len(block); at += 24 {
			row := string(block[at : at+24])
			if row[:4] != cell[:4] || row[12:16] != cell[:4] {
				t.Errorf("a row %q", row)
			}
			*into = append(*into, row[4:12]+" "+row[16:])
			*rows++
		}
		return nil
	}
}

// TestBlocks sends rows that are handed over together, with others in between, in
// pieces of any size: all arrive, in order.
func TestBlocks(t *testing.T) {
	alike := msgRow("aaaaaaaa", "bbbbbbbb") + msgRow("cccccccc", "dddddddd")
	null := msgRow("eeeeeeee", "NULL")
	// The start of such a row's message, as part of a value.
	head := msgRow("xD\x00\x00\x00\x1e\x00\x02", "ffffffff") + msgRow("gggggggg", "hhhhhhhD") + msgRow("\x00\x00\x00\x1e\x00\x02yy", "iiiiiiii")
	short := []string{"aaaaaaaa bbbbbbbb", "cccccccc dddddddd"}
	for _, c := range []struct {
		name, rows string
		first      []string
		count      int
		together   bool
	}{
		{"none", "", nil, 0, true},
		{"one", msgRow("aaaaaaaa", "bbbbbbbb"), short[:1], 1, true},
		{"two", alike, short, 2, true},
		{"many", strings.Repeat(alike, 1500), short, 3000, true},
		{"NULL at the start", null + alike, []string{"eeeeeeee NULL", short[0], short[1]}, 3, false},
		{"NULL in between", alike + null + alike, []string{short[0], short[1], "eeeeeeee NULL", short[0]}, 5, false},
		{"NULL at the end", strings.Repeat(alike, 1500) + null, short, 3001, false},
		{"notices", alike + msgNoise + alike, short, 4, false},
		{"a head in a value", alike + head + alike, []string{short[0], short[1], "xD\x00\x00\x00\x1e\x00\x02 ffffffff", "gggggggg hhhhhhhD"}, 7, false},
	} {
		for _, piece := range []int{1 << 20, 1000, 32, 31, 30, 7} {
			if piece < 1000 && c.count > 1000 {
				continue
			}
			t.Run(fmt.Sprint(c.name, " ", piece), func(t *testing.T) {
				_, dsn := newFake(t, answering(twoNumbers, c.rows, piece))
				p := open(t, dsn, Options{MaxConns: 1})
				for i := 0; i < 3; i++ {
					var got []string
					together := 0
					st := stmt("SELECT")
					collectBoth(t, st, &got, &together)
					run(t, p, st)
					if len(got) != c.count || fmt.Sprintf("%q", got[:len(c.first)]) != fmt.Sprintf("%q", c.first) {
						t.Errorf("round %d: %d rows, want %d; %.500q", i, len(got), c.count, got)
					}
					if i > 0 && c.together && together != c.count {
						t.Errorf("round %d: %d rows came together, want all %d", i, together, c.count)
					}
				}
			})
		}
	}
}

// TestBlocksOfSeveral: the rows of one statement are not taken for another's.
func TestBlocksOfSeveral(t *testing.T) {
	_, dsn := newFake(t, func(s *fakeSession) {
		s.request()
		s.request()
		head := msgParsed + msgBound + twoNumbers
		s.write(head + msgDone + msgReady + head + msgDone + msgReady)
		s.request()
		s.request()
		s.write(msgBound + msgRow("aaaaaaaa", "bbbbbbbb") + msgDone + msgReady + msgBound + msgRow("cccccccc", "dddddddd") + msgDone + msgReady)
		waitForEnd(s)
	})
	p := open(t, dsn, Options{MaxConns: 1})
	for i := 0; i < 2; i++ {
		var a, b []string
		together := 0
		first, second := stmt("A"), stmt("B")
		collectBoth(t, first, &a, &together)
		collectBoth(t, second, &b, &together)
		run(t, p, first, second)
		if i == 1 && (fmt.Sprint(a, b) != "[aaaaaaaa bbbbbbbb] [cccccccc dddddddd]" || together != 2) {
			t.Errorf("%q, %q, %d together", a, b, together)
		}
	}
}

// TestBlocksThatLie: rows of the right length whose columns' lengths are wrong.
func TestBlocksThatLie(t *testing.T) {
	good := msgRow("aaaaaaaa", "bbbbbbbb")
	for _, c := range []struct{ name, row, want string }{
		{"too long", msg('D', "\x00\x02\x00\x00\x00\x09aaaaaaaa\x00\x00\x00\x08bbbbbbbb"), "lengths are wrong"},
		{"too short", msg('D', "\x00\x02\x00\x00\x00\x08aaaaaaaa\x00\x00\x00\x07bbbbbbbb"), "lengths are wrong"},
		{"negative", msg('D', "\x00\x02\x80\x00\x00\x08aaaaaaaa\x00\x00\x00\x08bbbbbbbb"), "lengths are wrong"},
		{"NULL with a value", msg('D', "\x00\x02\xff\xff\xff\xffaaaaaaaa\x00\x00\x00\x08bbbbbbbb"), "lengths are wrong"},
		{"other columns", msg('D', "\x00\x01\x00\x00\x00\x14aaaaaaaa\x00\x00\x00\x08bbbbbbbb"), "another number of columns"},
		{"another message", "d" + good[1:], `unexpected message "d"`},
		{"another length", good[:3] + "\x01" + good[4:], "closed the connection"},
	} {
		for _, before := range []string{"", good, good + good} {
			t.Run(fmt.Sprint(c.name, " after ", len(before)), func(t *testing.T) {
				f, dsn := newFake(t, func(s *fakeSession) {
					s.request()
					s.write(msgParsed + msgBound + twoNumbers + msgDone + msgReady)
					s.request()
					s.write(msgBound + before + c.row + good + msgDone + msgReady)
				})
				p := open(t, dsn, Options{})
				run(t, p, stmt("SELECT"))
				var got []string
				together := 0
				st := stmt("SELECT")
				collectBoth(t, st, &got, &together)
				err := p.Run(within(t, 5*time.Second), []*ratelimit.Statement{st})
				if err == nil || st.Err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v; want %q", err, c.want)
				}
				for _, row := range got {
					if row != "aaaaaaaa bbbbbbbb" {
						t.Errorf("a row %q", row)
					}
				}
				eventually(t, "the connection is closed", func() bool { return f.open.Load() == 0 })
			})
		}
	}
	// Columns of other lengths that add up are rows like any others.
	t.Run("4 and 12", func(t *testing.T) {
		_, dsn := newFake(t, answering(twoNumbers, good+msgRow("aaaa", "bbbbbbbbbbbb"), 1000))
		p := open(t, dsn, Options{})
		for i := 0; i < 2; i++ {
			var got []string
			together := 0
			st := stmt("SELECT")
			collectBoth(t, st, &got, &together)
			run(t, p, st)
			if fmt.Sprint(got) != "[aaaaaaaa bbbbbbbb aaaa bbbbbbbbbbbb]" {
				t.Errorf("%q", got)
			}
		}
	})
}

// TestLayouts: rows whose columns are not all of eight bytes, or too many, come by
// Row alone.
func TestLayouts(t *testing.T) {
	for _, c := range []struct{ name, description, row string }{
		{"int", msg('T', "\x00\x02a\x00"+field(20)+"b\x00"+field(23)), msgRow("aaaaaaaa", "bbbb")},
		{"text", msg('T', "\x00\x02a\x00"+field(25)+"b\x00"+field(20)), msgRow("aaaaaaaa", "bbbbbbbb")},
		{"no columns", msg('T', "\x00\x00"), msgRow()},
		{"no room", msg('T', "\x08\x00"+strings.Repeat("n\x00"+field(20), 2048)), msgRow(strings.Fields(strings.Repeat("aaaaaaaa ", 2048))...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, dsn := newFake(t, answering(c.description, c.row+c.row, 1000))
			p := open(t, dsn, Options{})
			for i := 0; i < 2; i++ {
				st := stmt("SELECT")
				rows := 0
				st.Row = func([][]byte) error { rows++; return nil }
				st.Rows = func([]byte) error { return errTest }
				run(t, p, st)
				if rows != 2 {
					t.Errorf("round %d: %d rows", i, rows)
				}
			}
		})
	}
}

// TestBlockErrors lets Rows say no, as TestRowErrors does Row, and panic.
func TestBlockErrors(t *testing.T) {
	rows := strings.Repeat(msgRow("aaaaaaaa", "bbbbbbbb"), 3000)
	f, dsn := newFake(t, answering(twoNumbers, rows+msgRow("NULL", "NULL"), 1<<20))
	p := open(t, dsn, Options{MaxConns: 1})
	run(t, p, stmt("SELECT"))
	for i := 0; i < 3; i++ {
		calls := 0
		st := stmt("SELECT")
		st.Row = func([][]byte) error { calls++; return nil }
		st.Rows = func([]byte) error { calls++; return errTest }
		if err := p.Run(within(t, time.Second), []*ratelimit.Statement{st}); err != nil || !errors.Is(st.Err, errTest) || st.Code != "" || calls != 1 {
			t.Errorf("%v, %v, %q, %d calls", err, st.Err, st.Code, calls)
		}
	}
	if n := f.accepted.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	func() {
		defer func() {
			if r := recover(); fmt.Sprint(r) != errTest.Error() {
				t.Errorf("recovered %v", r)
			}
		}()
		st := stmt("SELECT")
		st.Rows = func([]byte) error { panic(errTest) }
		_ = p.Run(within(t, time.Second), []*ratelimit.Statement{st})
	}()
	eventually(t, "the connection is closed", func() bool { return f.open.Load() == 0 })
}
