package ratelimit

import (
	"strings"
	"sync"
)

// clears knows to which rows quota was given back after a batch began: what such a
// batch was refused may be there by now. It counts steps, so that no two events are
// at the same time.
type clears struct {
	mu    sync.Mutex
	step  int64
	rows  map[rowKey]int64
	since int64 // of a batch that began before it, any row may have been cleared
}

// maxClears bounds the rows of which it is known when they were cleared.
const maxClears = 1000

func newClears() *clears { return &clears{rows: map[rowKey]int64{}} }

// begin is when a batch begins.
func (c *clears) begin() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step++
	return c.step
}

// note notes that quota is, or is about to be, given back to a row.
func (c *clears) note(id rowKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step++
	if len(c.rows) >= maxClears {
		c.rows = map[rowKey]int64{}
		c.since = c.step
	}
	id.key = strings.Clone(id.key) // it may be a part of a long request
	c.rows[id] = c.step
}

// after reports whether a row may have been cleared after a batch began.
func (c *clears) after(id rowKey, began int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return began < c.since || c.rows[id] > began
}
