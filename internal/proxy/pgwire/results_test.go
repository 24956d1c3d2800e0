package pgwire

import (
	"fmt"
	"strings"
	"testing"
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
