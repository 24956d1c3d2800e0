package pgwire

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
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

// TestRowsOfEqualLength sends rows that are taken together, with others in
// between, in pieces of any size: all arrive, in order.
func TestRowsOfEqualLength(t *testing.T) {
	alike := msgRow("aaaaaaaa", "bbbbbbbb") + msgRow("cccccccc", "dddddddd")
	null := msgRow("eeeeeeee", "NULL")
	// The start of such a row's message, as part of a value.
	head := msgRow("xD\x00\x00\x00\x1e\x00\x02", "ffffffff") + msgRow("gggggggg", "hhhhhhhD") + msgRow("\x00\x00\x00\x1e\x00\x02yy", "iiiiiiii")
	const aliked = "aaaaaaaa bbbbbbbb cccccccc dddddddd "
	for _, c := range []struct{ name, rows, want string }{
		{"none", "", ""},
		{"one", msgRow("aaaaaaaa", "bbbbbbbb"), "aaaaaaaa bbbbbbbb "},
		{"two", alike, aliked},
		{"many", strings.Repeat(alike, 1500), strings.Repeat(aliked, 1500)},
		{"NULL at the start", null + alike, "eeeeeeee NULL " + aliked},
		{"NULL in between", alike + null + alike, aliked + "eeeeeeee NULL " + aliked},
		{"NULL at the end", strings.Repeat(alike, 1500) + null, strings.Repeat(aliked, 1500) + "eeeeeeee NULL "},
		{"notices", alike + msgNoise + alike, aliked + aliked},
		{"lengths that add up", alike + msgRow("aaaa", "bbbbbbbbbbbb"), aliked + "aaaa bbbbbbbbbbbb "},
		{"a head in a value", alike + head + alike,
			aliked + "xD\x00\x00\x00\x1e\x00\x02 ffffffff gggggggg hhhhhhhD \x00\x00\x00\x1e\x00\x02yy iiiiiiii " + aliked},
	} {
		for _, piece := range []int{1 << 20, 1000, 32, 31, 30, 7} {
			if piece < 1000 && len(c.rows) > 10000 {
				continue
			}
			t.Run(fmt.Sprint(c.name, " ", piece), func(t *testing.T) {
				_, dsn := newFake(t, answering(twoNumbers, c.rows, piece))
				p := open(t, dsn, Options{MaxConns: 1})
				st := stmt("SELECT")
				for i := 0; i < 3; i++ {
					run(t, p, st)
					got := strings.Join(append(cells(t, st), ""), " ")
					if got != c.want {
						t.Errorf("round %d: %.500q; want %.500q", i, got, c.want)
					}
				}
			})
		}
	}
}

// TestInvalidRows: messages that look like such rows, but are not.
func TestInvalidRows(t *testing.T) {
	good := msgRow("aaaaaaaa", "bbbbbbbb")
	for _, c := range []struct{ name, row, want string }{
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
				st := stmt("SELECT")
				err := p.Run(within(t, 5*time.Second), []*postgres.Statement{st})
				if err == nil || st.Err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v; want %q", err, c.want)
				}
				for i, got := range cells(t, st) {
					if got != []string{"aaaaaaaa", "bbbbbbbb"}[i%2] {
						t.Errorf("column %d is %q", i, got)
					}
				}
				await.Within(t, 5*time.Second, "the connection is closed", func() bool { return f.open.Load() == 0 })
			})
		}
	}
}
