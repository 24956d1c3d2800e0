package ratelimit

import (
	"fmt"
	"testing"
)

// TestClears: it is known which rows were cleared after a batch began, and whether
// others may have been.
func TestClears(t *testing.T) {
	c := newClears()
	a, b := rowKey{false, "p", "a"}, rowKey{true, "p", "a"}
	before := c.begin()
	c.note(a)
	afterwards := c.begin()
	check := func(id rowKey, began int64, want bool) {
		t.Helper()
		if got := c.after(id, began); got != want {
			t.Errorf("%v was cleared after step %d: %v, want %v", id, began, got, want)
		}
	}
	check(a, before, true)
	check(a, afterwards, false)
	check(b, before, false)
	later := afterwards
	for i := range 3 * maxClears {
		c.note(rowKey{false, "p", fmt.Sprint(i)})
		if n := len(c.rows) + len(c.older); n > 2*maxClears {
			t.Fatalf("%d rows are known, want at most %d", n, 2*maxClears)
		}
		if i == maxClears-2 {
			check(a, before, true) // half of what is known may go
			later = c.begin()
		}
	}
	for _, id := range []rowKey{a, b} {
		check(id, before, false)
		for began, want := range map[int64]bool{before: true, afterwards: true, later: true, c.begin(): false} {
			if got := c.mayBeAfter(id, began); got != want {
				t.Errorf("%v may have been cleared after step %d: %v, want %v", id, began, got, want)
			}
		}
	}
	check(rowKey{false, "p", fmt.Sprint(3*maxClears - 1)}, later, true)
	check(rowKey{false, "p", fmt.Sprint(2 * maxClears)}, later, true)
}
