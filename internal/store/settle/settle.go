// Package settle changes rows by what requests cost more or less than they were charged, see
// algorithm.Definition.Adjust, and charges what was admitted without the database.
//
// Nobody waits for a settlement. It goes with the next batch, before the requests, or with one of its own if no batch
// comes. It is sent once. If its answer is lost, it is not repeated, because it may have had its effect. A statement
// that has waited for a lock in vain had none, so that its settlements wait for another batch.
package settle

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/own"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Settlements are those of a store.
type Settlements struct {
	waiting *own.Waiting
	report  func(error)
	charged func(units, charged int64, lost bool) // see Charge

	Adjust, ChargeLocal *own.Kind

	// Wait is how long settlements wait for the batch of a request. Tests change it.
	Wait time.Duration

	mu         sync.Mutex // guards all that follows; taken before that of waiting
	calls      map[window]*own.Call
	made, lost int64
}

// window is what settlements are added up by: two charges of a row in one window.
type window struct {
	row    lease.RowID
	number int64 // own.Call.Number; noWindow is of Charge
}

const noWindow = math.MinInt64

const (
	// maxSettlements bounds those that wait, while the database does not answer. Further ones are lost.
	maxSettlements = 20000

	// maxWait is for how long a settlement on a locked row tries.
	maxWait = time.Minute

	defaultWait = 5 * time.Millisecond
)

// New returns no settlements yet. charged learns what becomes of units that were to be charged: how many of them were,
// and whether the others may have been.
func New(w *own.Waiting, report func(error), charged func(units, charged int64, lost bool)) *Settlements {
	return &Settlements{
		waiting: w, report: report, charged: charged, Wait: defaultWait, calls: map[window]*own.Call{},
		Adjust: &own.Kind{Statement: own.Adjust, Once: true}, ChargeLocal: &own.Kind{Statement: own.Charge, Once: true},
	}
}

// Add changes a counter soon.
func (s *Settlements) Add(h *batch.Settlement) {
	row := lease.RowOf(h.Limit, strings.Clone(h.Key)) // the key may be a part of a long request
	s.add(&own.Call{Kind: s.Adjust, Row: row, Limit: h.Limit, N: h.Back, Claim: h.DecidedAt,
		Number: algorithm.WindowOf(h.Limit, h.DecidedAt, h.Reset)}, s.Wait)
}

// Charge charges units soon, as far as the quota goes, also on a row that is not there.
func (s *Settlements) Charge(row lease.RowID, l *ratelimit.Limit, units int64) {
	s.add(&own.Call{Kind: s.ChargeLocal, Row: row, Limit: l, N: units, Number: noWindow}, s.Wait)
}

// add adds a settlement to the one of its window, or to the calls that wait.
func (s *Settlements) add(c *own.Call, wait time.Duration) {
	w := window{c.Row, c.Number}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.calls[w]
	if before != nil && s.waiting.Join(c, before) {
		return
	}
	if before == nil && c.Since.IsZero() && len(s.calls) >= maxSettlements {
		s.lose(c)
		return
	}
	s.calls[w] = c
	s.waiting.Add(c, wait)
}

// lose counts a settlement that is lost. The caller holds the mutex.
func (s *Settlements) lose(c *own.Call) {
	s.lost++
	if c.Kind == s.ChargeLocal {
		s.charged(c.N, 0, true)
	}
}

// End ends settlements. Those that had no effect because of a lock wait for another batch. The others that have failed
// are reported once, since a batch may have 500.
func (s *Settlements) End(calls []*own.Call, _ error) {
	var again []*own.Call
	var reason error
	lost := 0
	s.mu.Lock()
	for _, c := range calls {
		if w := (window{c.Row, c.Number}); s.calls[w] == c {
			delete(s.calls, w)
		}
		switch {
		case c.Err == nil:
			s.made++
			if c.Kind == s.ChargeLocal {
				s.charged(c.N, c.Granted, false)
			}
		case errors.Is(c.Err, own.ErrLocked) && (c.Since.IsZero() || time.Since(c.Since) < maxWait):
			c.Retry()
			again = append(again, c)
		default:
			s.lose(c)
			lost++
			reason = c.Err
		}
	}
	s.mu.Unlock()
	for _, c := range again {
		s.add(c, own.LongestWait)
	}
	if reason != nil {
		s.report(fmt.Errorf("ratelimit/postgres: %d settlements are lost: %w", lost, reason))
	}
}

// Counts returns how many settlements were made, and of how many it is not known whether they had their effect.
func (s *Settlements) Counts() (made, lost int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made, s.lost
}
