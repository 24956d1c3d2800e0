package history

import (
	"math"
	"math/rand"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// latest is the year 2200, in microseconds since 1970. Times outside of 1970 to latest are replaced:
// they would create partitions that nobody needs.
const latest = 7258118400 * 1000000

// Add records what happened to a request. It copies r, never waits for the database, and is safe for
// concurrent use. It is a function and not a method because Traefik calls it for each request: see
// internal/testkit/imports.
func Add(w *Writer, r *Record) {
	micros := r.Time.UnixMicro()
	if micros <= 0 || micros > latest {
		micros = w.settings.Now().UnixMicro()
	}
	bucket := 0
	if r.Outcome != Shadow {
		bucket = BucketOf(r.Duration)
	}
	audited := r.Audit.Level == settings.AuditAll || r.Audit.Level != settings.AuditOff &&
		r.Outcome != Allowed
	weight := "1"
	if r.Audit.Level == settings.AuditSample && r.Outcome == Allowed {
		share := r.Audit.Share
		audited = share > 0 && (share >= 1 || rand.Float64() < share)
		if audited && share < 1 {
			weight = weightText(share)
		}
	}
	w.mu.Lock()
	if w.closed {
		if audited {
			w.stats.Recorded++
			w.stats.Dropped++
		}
		if r.Outcome != Shadow {
			w.stats.DroppedMetrics++
			if r.User != "" {
				w.stats.DroppedUsage++
			}
		}
		w.mu.Unlock()
		return
	}
	at := micros / 60000000
	c := w.totals.last
	if c == nil || c.of.minute != at || c.of.prefix != r.Prefix || c.of.host != r.Host ||
		c.of.route != r.Route {
		c = w.totals.cellOf(at, r)
		if c != nil {
			w.totals.last = c
		}
	}
	if c == nil {
		if r.Outcome != Shadow {
			w.stats.DroppedMetrics++
		}
	} else {
		addToCell(c, r, bucket)
	}
	if r.User != "" && r.Outcome != Shadow {
		if u := w.totals.usageOf(micros/3600000000, r); u == nil {
			w.stats.DroppedUsage++
		} else {
			addToUsage(u, r, micros)
		}
	}
	var wake func()
	if audited {
		wake = addRow(w, r, micros, weight)
	}
	w.mu.Unlock()
	if wake != nil {
		wake()
	}
}

// addToCell adds a record to the metrics.
func addToCell(c *cell, r *Record, bucket int) {
	d := r.Outcome
	if d > Failed {
		d = Failed
	}
	c.counts[d]++
	if d == Shadow {
		return
	}
	if d == Allowed || d == Failed && r.Status == 0 {
		c.cost += r.Cost
		if c.cost < 0 {
			c.cost = math.MaxInt64 // clients can choose costs
		}
		if r.Source == ratelimit.FromLease {
			c.fromLease++
		}
	} else if d == Limited && (r.Source == ratelimit.FromBlocked || r.Source == ratelimit.FromMemory) {
		c.fromMemory++
	}
	if r.Source == ratelimit.FromPostgres && r.Quota > 0 {
		c.fromDatabase++
	}
	c.latency[bucket]++
}

// addToUsage adds a record to the usage of its user.
func addToUsage(u *usage, r *Record, micros int64) {
	u.requests++
	if r.Outcome == Allowed || r.Outcome >= Failed && r.Status == 0 {
		u.cost += r.Cost
		if u.cost < 0 {
			u.cost = math.MaxInt64
		}
	} else {
		u.refused++
		if r.Outcome == Limited {
			u.limited++
		} else if r.Outcome == Blocked || r.Outcome == Rejected {
			u.denied++
		}
	}
	if micros > u.last {
		u.last = micros
	}
}

// addRow adds a record to the audit log. If a batch is full, it returns a function that wakes the
// writing goroutine, and otherwise nil. The caller holds the mutex.
func addRow(w *Writer, r *Record, micros int64, weight string) func() {
	p := &w.pending
	w.stats.Recorded++
	if r.Outcome != Allowed {
		k := mergeKey{
			outcome: r.Outcome, cost: r.Cost, keyID: r.KeyID, status: r.Status, prefix: r.Prefix, key: r.Key,
			user: r.User, limit: r.Limit, reason: r.Reason,
		}
		if merge(p, &k, micros/1000000) {
			return nil
		}
		appendRow(p, r, micros, weight, w.settings.Address)
		if len(r.Key) <= maxKey && len(r.User) <= maxKey {
			remember(p, &k)
		}
	} else {
		appendRow(p, r, micros, weight, w.settings.Address)
	}
	for len(p.rows) > 0 && (len(p.rows)+w.sent.rows > w.settings.MaxPending ||
		p.bytes+w.sent.bytes > int64(w.settings.MaxPending)*pendingRowBytes) {
		w.stats.Dropped += p.rows[0].count
		p.remove(1)
	}
	if len(p.rows) == w.batchRows && !w.failing {
		return w.wake
	}
	return nil
}
