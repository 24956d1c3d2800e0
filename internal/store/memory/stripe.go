package memory

import (
	"strings"
	"sync"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
)

// rowID names a row.
type rowID struct {
	durable     bool
	prefix, key string
}

// stripe is a part of the keys under a lock of its own. All methods need the lock.
//
// entries holds every row once, in no order, so that each call can sweep a few of them. The
// map cannot serve for that: ranging over a map that has shrunk visits its empty slots.
type stripe struct {
	mu      sync.Mutex
	closed  bool
	max     int
	rows    map[rowID]*indexedRow
	largest int // the most rows since the map was made
	entries []*indexedRow
	next    int // where the sweep continues
}

// indexedRow is a row and its index in entries.
type indexedRow struct {
	key rowID
	at  int
	row algorithm.Row
}

func newStripe(max int) *stripe { return &stripe{max: max, rows: map[rowID]*indexedRow{}} }

// row returns a key's row, and makes it if there is none. A later call of row may displace it.
// A charge to a displaced row is lost.
func (s *stripe) row(k rowID, now int64) *algorithm.Row {
	e := s.rows[k]
	if e == nil {
		if len(s.entries) >= s.max {
			s.displace(now)
		}
		k.key = strings.Clone(k.key) // the key may be a part of a long request
		e = &indexedRow{key: k, at: len(s.entries)}
		s.rows[k] = e
		s.entries = append(s.entries, e)
		if len(s.entries) > s.largest {
			s.largest = len(s.entries)
		}
	}
	return &e.row
}

// remove deletes a key's row, if there is one.
func (s *stripe) remove(k rowID) {
	if e := s.rows[k]; e != nil {
		s.removeEntry(e)
	}
}

func (s *stripe) removeEntry(e *indexedRow) {
	last := len(s.entries) - 1
	moved := s.entries[last]
	s.entries[e.at] = moved
	moved.at = e.at
	s.entries[last] = nil
	s.entries = s.entries[:last]
	delete(s.rows, e.key)
	s.shrink()
}

// leastShrunk is the size below which memory is not worth freeing.
const leastShrunk = 1024

// shrink frees memory once three quarters of the largest number of rows are gone: a map
// never releases memory.
func (s *stripe) shrink() {
	if s.largest < leastShrunk || len(s.entries) > s.largest/4 {
		return
	}
	s.largest = len(s.entries)
	s.rows = make(map[rowID]*indexedRow, len(s.entries))
	s.entries = append(make([]*indexedRow, 0, len(s.entries)), s.entries...)
	for _, e := range s.entries {
		s.rows[e.key] = e
	}
}

// sweepSteps is the number of rows that each call inspects to find expired ones. A call adds fewer
// rows in general, so expired rows do not accumulate.
const sweepSteps = 4

// sweep deletes the expired rows among the next few.
func (s *stripe) sweep(now int64) {
	for i := 0; i < sweepSteps && len(s.entries) > 0; i++ {
		if s.next >= len(s.entries) {
			s.next = 0
		}
		e := s.entries[s.next]
		if e.row.Expired(now) {
			s.removeEntry(e) // the last row gets its index and is next
		} else {
			s.next++
		}
	}
}

// displaceTries is the number of rows that displace inspects to find an expired one.
const displaceTries = 16

// displace removes one row: an expired one among the next few, or else the next.
func (s *stripe) displace(now int64) {
	for i := 0; i < displaceTries; i++ {
		s.next++
		if s.next >= len(s.entries) {
			s.next = 0
		}
		if s.entries[s.next].row.Expired(now) {
			break
		}
	}
	s.removeEntry(s.entries[s.next])
}
