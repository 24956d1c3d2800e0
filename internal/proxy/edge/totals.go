package edge

import (
	"encoding/json"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// mostBusy and busyBytes bound the limits in Totals.Read, and maxTotals those that are counted.
const (
	mostBusy  = 20
	busyBytes = 500
	maxTotals = 10000
)

// Totals counts the requests of a process on a database since its start, for the row in the registry. Nil counts nothing.
type Totals struct {
	mu     sync.Mutex // guards what follows, without LimitTotals.Leased
	sum    registry.Totals
	limits map[string]*LimitTotals // by prefix
}

// LimitTotals counts the requests of a limit.
type LimitTotals struct {
	// Leased counts requests that a lease admits and that Count does not count; atomic.
	Leased int64

	prefix            string
	admitted, refused int64
}

// NewTotals returns Totals without requests.
func NewTotals() *Totals { return &Totals{limits: map[string]*LimitTotals{}} }

// Of returns the counts of a limit. Beyond maxTotals limits they are in no row.
func (t *Totals) Of(prefix string) *LimitTotals {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of(prefix)
}

// of is Of for a caller that holds the mutex.
func (t *Totals) of(prefix string) *LimitTotals {
	l := t.limits[prefix]
	if l == nil {
		l = &LimitTotals{prefix: prefix}
		if len(t.limits) < maxTotals {
			t.limits[prefix] = l
		}
	}
	return l
}

// Count counts a request by its Outcome.
func (t *Totals) Count(q *Request) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.Outcome.Err != nil {
		t.sum.Undecided++
		t.sum.UndecidedAt = time.Now()
		return
	}
	if d := q.Outcome.Decision; d != nil && d.Source == ratelimit.FromMemory {
		t.sum.Local++
	}
	t.count(q.Outcome.Status == 0, q.Hits, q.Decisions)
}

// CountCalls counts requests that a queue has decided, by Admitted.
func (t *Totals) CountCalls(requests []*Request) {
	if t == nil {
		return
	}
	t.mu.Lock()
	for _, q := range requests {
		t.count(q.Admitted, q.Call.Hits, q.Call.Decisions)
	}
	t.mu.Unlock()
}

// count counts a request: the limits that it is charged to, or that refuse it, count it too. The caller holds the mutex.
func (t *Totals) count(admitted bool, hits []ratelimit.Hit, decisions []ratelimit.Decision) {
	if admitted {
		t.sum.Admitted++
	} else {
		t.sum.Refused++
	}
	for i := range decisions {
		if hits[i].Apart || !admitted && decisions[i].Allowed {
			continue
		}
		l := t.of(hits[i].Limit.Prefix)
		if admitted {
			l.admitted++
		} else {
			l.refused++
		}
	}
}

// Read returns what was counted. Of the limits it has the busiest ones.
func (t *Totals) Read() registry.Totals {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := t.sum
	var busy []LimitTotals
	for _, l := range t.limits {
		leased := atomic.LoadInt64(&l.Leased)
		sum.Admitted += leased
		busy = append(busy, LimitTotals{prefix: l.prefix, admitted: l.admitted + leased, refused: l.refused})
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
	for i := 0; i < len(busy) && i < mostBusy; i++ {
		busiest[strings.ToValidUTF8(busy[i].prefix, "")] = []int64{busy[i].admitted, busy[i].refused}
		text, err := json.Marshal(busiest)
		if err != nil || len(text) > busyBytes {
			break
		}
		sum.Busiest = string(text)
	}
	return sum
}
