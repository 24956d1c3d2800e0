package ratelimit

import (
	"fmt"
	"testing"
)

// TestClears: it is known which rows were cleared after a batch began, and of what
// has been forgotten it is assumed.
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
	for i := range 3 * maxClears {
		c.note(rowKey{false, "p", fmt.Sprint(i)})
		if len(c.rows) > maxClears {
			t.Fatalf("%d rows are known, want at most %d", len(c.rows), maxClears)
		}
	}
	check(a, before, true)
	check(b, before, true)
	check(a, c.begin(), false)
	check(b, c.begin(), false)
}
