package history

import (
	"math/rand"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// maxMicros is the start of the year 2200 in microseconds since 1970. The current time replaces later times
// and times before 1970, because each such time would create a partition of its own.
const maxMicros = 7258118400 * 1000000

// Add adds the record of a request. Add copies r, never waits for the database, and is safe for concurrent
// use. Add is a function and not a method because Yaegi calls functions faster: see internal/testkit/imports.
func Add(w *Writer, r *Record) {
	micros := w.micros(r.Time)
	audited := r.Audit.Level == option.AuditAll || r.Audit.Level != option.AuditOff &&
		r.Outcome != outcome.Admitted
	weight := "1"
	if r.Audit.Level == option.AuditSample && r.Outcome == outcome.Admitted {
		share := r.Audit.Share
		audited = share > 0 && (share >= 1 || rand.Float64() < share)
		if audited && share < 1 {
			weight = strconv.FormatFloat(1/share, 'g', -1, 64)
		}
	}
	w.mu.Lock()
	if w.closed {
		if audited {
			w.stats.Dropped++
		}
		if !r.Shadow {
			w.stats.DroppedMetrics++
		}
		w.mu.Unlock()
		return
	}
	c := w.cells.cellOf(micros/60000000, cellKey{r.KeyID, r.User, r.Prefix, r.Endpoint, r.Unit})
	if c != nil {
		countRecord(w, c, r, micros)
	} else if !r.Shadow {
		w.stats.DroppedMetrics++
	}
	if audited {
		addRow(w, r, micros, weight)
	}
	w.mu.Unlock()
}

// micros returns t in microseconds since 1970, or the current time if t is out of range: see maxMicros.
func (w *Writer) micros(t time.Time) int64 {
	micros := t.UnixMicro()
	if micros <= 0 || micros > maxMicros {
		micros = w.settings.Now().UnixMicro()
	}
	return micros
}

// countRecord adds a record to its cell c, and the charges of the record to the cell of each of its limits.
// The caller holds the mutex.
func countRecord(w *Writer, c *cell, r *Record, micros int64) {
	if c.numbers[cellLast] < micros {
		c.numbers[cellLast] = micros
	}
	if r.Shadow {
		c.numbers[cellShadow]++
		return
	}
	c.numbers[cellAdmitted+int(r.Outcome)]++
	if c.isOther {
		w.stats.Other++
	}
	addDuration(c, r.Duration)
	if r.Status == 0 {
		if r.Source == ratelimit.FromLease {
			c.numbers[cellFromLease]++
		}
		w.cells.addCharges(c, r)
	} else if r.Outcome == outcome.Limited &&
		(r.Source == ratelimit.FromRemembered || r.Source == ratelimit.FromMemory) {
		c.numbers[cellFromMemory]++
	}
	if r.Source == ratelimit.FromPostgres && r.Quota > 0 {
		c.numbers[cellFromDatabase]++
	}
}

// addRow adds a record to the audit log. If the pending rows now fill a parcel, it starts a flush. The caller
// holds the mutex.
func addRow(w *Writer, r *Record, micros int64, weight string) {
	p := &w.pending
	var k mergeKey
	if r.Outcome != outcome.Admitted && merge(w, r, micros/1000000, &k) {
		return
	}
	row := newAuditRow(r, micros, weight, w.settings.Address)
	p.rows = append(p.rows, row)
	w.size.rows++
	w.size.records++
	w.size.bytes += row.bytes
	if r.Outcome != outcome.Admitted && len(r.Key) <= maxKey && len(r.User) <= maxKey &&
		len(r.Tier) <= maxText {
		addMerged(p, &k)
	}
	for len(p.rows) > 0 &&
		(w.size.rows > w.maxPending || w.size.bytes > int64(w.maxPending)*pendingRowBytes) {
		oldest := p.removeOldest(1)
		w.stats.Dropped += w.release(oldest)
		oldest[0] = tableRow{} // so that its texts can be freed, although the array still has the row
	}
	if len(p.rows) == w.parcelRows && !w.failing {
		w.wake()
	}
}
