package memory

import (
	"strings"
	"sync"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
)

// stripe holds the rows of some keys. Callers of its methods hold mu.
//
// entries holds every row once, in no order, so that each call can sweep a few of them. Ranging over the
// map instead would be slow after it has shrunk, because it visits empty slots of the map.
type stripe struct {
	mu      sync.Mutex
	closed  bool
	max     int
	rows    map[lease.RowID]*indexedRow
	largest int // the largest number of rows since the map was made
	entries []*indexedRow
	next    int // the index in entries at which the sweep continues
}

// indexedRow is a row and its index in entries.
type indexedRow struct {
	key   lease.RowID
	index int
	row   algorithm.Row
}

// row returns the row of a key, which may be new. A later call of row may evict it; a charge to an evicted
// row is lost.
func (s *stripe) row(k lease.RowID, now int64) *algorithm.Row {
	e := s.rows[k]
	if e == nil {
		if len(s.entries) >= s.max {
			s.evict(now)
		}
		k.Key = strings.Clone(k.Key) // the key may be a part of a long request
		e = &indexedRow{key: k, index: len(s.entries)}
		s.rows[k] = e
		s.entries = append(s.entries, e)
		if len(s.entries) > s.largest {
			s.largest = len(s.entries)
		}
	}
	return &e.row
}

// remove deletes the row of a key, if it exists.
func (s *stripe) remove(k lease.RowID) {
	if e := s.rows[k]; e != nil {
		s.removeEntry(e)
	}
}

func (s *stripe) removeEntry(e *indexedRow) {
	last := len(s.entries) - 1
	moved := s.entries[last]
	s.entries[e.index] = moved
	moved.index = e.index
	s.entries[last] = nil
	s.entries = s.entries[:last]
	delete(s.rows, e.key)
	s.shrink()
}

// minShrink is the least number of rows for which freeing memory is worth the work.
const minShrink = 1024

// shrink copies the rows into new memory once three quarters of the largest number of rows are gone, because
// a map never releases memory.
func (s *stripe) shrink() {
	if s.largest < minShrink || len(s.entries) > s.largest/4 {
		return
	}
	s.largest = len(s.entries)
	s.rows = make(map[lease.RowID]*indexedRow, len(s.entries))
	s.entries = append(make([]*indexedRow, 0, len(s.entries)), s.entries...)
	for _, e := range s.entries {
		s.rows[e.key] = e
	}
}

// sweepSteps is the number of rows that each call inspects to find expired ones. It exceeds the number of
// rows that most calls add, so that expired rows do not accumulate.
const sweepSteps = 4

// sweep deletes the expired rows among the next few.
func (s *stripe) sweep(now int64) {
	for i := 0; i < sweepSteps && len(s.entries) > 0; i++ {
		if s.next >= len(s.entries) {
			s.next = 0
		}
		e := s.entries[s.next]
		if e.row.Expired(now) {
			s.removeEntry(e) // the last row moves to this index, and is inspected next
		} else {
			s.next++
		}
	}
}

// evictTries is the number of rows that evict inspects to find an expired one.
const evictTries = 16

// evict deletes one row: the first expired one of the next evictTries rows, or else the last of them.
func (s *stripe) evict(now int64) {
	for i := 0; i < evictTries; i++ {
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
