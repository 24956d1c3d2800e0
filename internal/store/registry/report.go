package registry

import (
	"encoding/json"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// mostBusy and busyBytes bound the limits in Report.Read, and mostReported those that are counted.
const (
	maxBusy     = 20
	busyBytes   = 500
	maxReported = 10000
)

// Report counts the requests of this process on a database since its start, for its row. A nil Report counts
// nothing.
type Report struct {
	mu     sync.Mutex // guards what follows, without LimitReport.Leased
	sum    Totals
	limits map[string]*LimitReport // by prefix
	stores int                     // how many stores have the row; joined.mu guards it
}

// LimitReport counts the requests of a limit.
type LimitReport struct {
	// Leased counts requests that a lease admits and that Count does not count; atomic.
	Leased int64

	prefix            string
	admitted, refused int64
}

// started is the epoch of this process.
var processEpoch = time.Now().UnixMicro()

// joined holds the reports of this process, by name and DSN.
var reports = struct {
	mu      sync.Mutex // guards reports
	reports map[string]*Report
}{reports: map[string]*Report{}}

// Join returns the row of this process for a store on a database, with its name and epoch. Stores with the
// same name and DSN have one Report.
func Join(name, dsn string) (*Node, *Report) {
	reports.mu.Lock()
	defer reports.mu.Unlock()
	r := reports.reports[name+" "+dsn]
	if r == nil {
		r = &Report{limits: map[string]*LimitReport{}}
		reports.reports[name+" "+dsn] = r
	}
	r.stores++
	leave := func() bool {
		reports.mu.Lock()
		defer reports.mu.Unlock()
		r.stores--
		return r.stores == 0
	}
	return &Node{Name: name, Epoch: processEpoch, Totals: func() Totals { return r.Read() }, Leave: leave}, r
}

// Of returns the counts of a limit. Beyond mostReported limits they are in no row.
func (r *Report) Of(prefix string) *LimitReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limit(prefix)
}

// limit implements Of for a caller that holds the mutex.
func (r *Report) limit(prefix string) *LimitReport {
	l := r.limits[prefix]
	if l == nil {
		l = &LimitReport{prefix: prefix}
		if len(r.limits) < maxReported {
			r.limits[prefix] = l
		}
	}
	return l
}

// Undecided counts a request without a decision.
func (r *Report) Undecided() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum.Undecided++
	r.sum.UndecidedAt = time.Now()
}

// Count counts a request that was decided. So do the limits that it is charged to, or that refuse it.
func (r *Report) Count(admitted bool, hits []ratelimit.Hit, decisions []ratelimit.Decision) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if admitted {
		r.sum.Admitted++
	} else {
		r.sum.Refused++
	}
	local := int64(0)
	for i := range decisions {
		if decisions[i].Source == ratelimit.FromMemory {
			local = 1
		}
		if hits[i].Apart || !admitted && decisions[i].Allowed {
			continue
		}
		l := r.limit(hits[i].Limit.Prefix)
		if admitted {
			l.admitted++
		} else {
			l.refused++
		}
	}
	r.sum.Local += local
}

// Read returns what was counted. Of the limits it has the busiest ones.
func (r *Report) Read() Totals {
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := r.sum
	var busy []LimitReport
	for _, l := range r.limits {
		leased := atomic.LoadInt64(&l.Leased)
		sum.Admitted += leased
		busy = append(busy, LimitReport{prefix: l.prefix, admitted: l.admitted + leased, refused: l.refused})
	}
	sort.Slice(busy, func(i, j int) bool {
		a, b := busy[i], busy[j]
		if a.admitted+a.refused != b.admitted+b.refused {
			return a.admitted+a.refused > b.admitted+b.refused
		}
		return a.prefix < b.prefix
	})
	busiest := map[string][]int64{}
	sum.Busiest = "{}"
	for i := 0; i < len(busy) && i < maxBusy; i++ {
		busiest[strings.ToValidUTF8(busy[i].prefix, "")] = []int64{busy[i].admitted, busy[i].refused}
		text, err := json.Marshal(busiest)
		if err != nil || len(text) > busyBytes {
			break
		}
		sum.Busiest = string(text)
	}
	return sum
}
