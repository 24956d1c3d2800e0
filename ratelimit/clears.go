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
	rows  map[rowKey]int64 // when each was cleared
	older map[rowKey]int64 // likewise, before those
	turn  int64            // when rows was begun
	since int64            // when older was: of what was cleared before, nothing is known
}

// maxClears bounds the rows of either map. While a batch is under way there are
// fewer.
const maxClears = 4000

func newClears() *clears { return &clears{rows: map[rowKey]int64{}} }

// begin is when a batch begins.
func (c *clears) begin() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step++
	return c.step
}

// note notes that quota was given back to a row.
func (c *clears) note(id rowKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step++
	if len(c.rows) >= maxClears {
		c.since = c.turn
		c.turn = c.step
		c.older = c.rows
		c.rows = map[rowKey]int64{}
	}
	id.key = strings.Clone(id.key) // it may be a part of a long request
	c.rows[id] = c.step
}

// after reports whether a row is known to have been cleared after a batch began.
func (c *clears) after(id rowKey, began int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.knownAfter(id, began)
}

// mayBeAfter reports whether a row may have been, as far as is known.
func (c *clears) mayBeAfter(id rowKey, began int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since > began || c.knownAfter(id, began)
}

// knownAfter is after, for who holds the mutex.
func (c *clears) knownAfter(id rowKey, began int64) bool {
	return c.rows[id] > began || c.older[id] > began
}
