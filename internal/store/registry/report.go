package registry

import (
	"encoding/json"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// maxBusy and busyBytes bound the limits in the row. maxReported bounds the limits that are counted.
	maxBusy     = 20
	busyBytes   = 500
	maxReported = 10000
	// maxProblems bounds the bytes of problems in the row. Reports of the policy list all problems.
	maxProblems = 400
)

// Report holds what a process reports in its row: its state, and counts of requests since its start. A nil
// Report counts nothing.
type Report struct {
	mu     sync.Mutex // guards the fields below, except LimitReport.Leased
	row    row
	limits map[string]*LimitReport // by prefix
	stores int                     // the number of stores that share the row
}

// row is the column report of rate_limit_nodes. Its times are microseconds by the clock of this machine, and
// Clock is the time of the write, so that the server can express them by its own clock. 0 means none.
type row struct {
	Version    string   `json:"version,omitempty"`
	Region     string   `json:"region,omitempty"`
	Clock      int64    `json:"clock"`
	Applied    string   `json:"applied,omitempty"`  // see Registry.SetApplied; "" without a policy
	Log        string   `json:"log,omitempty"`      // the oid of the policy's log, which a restore changes
	Problems   []string `json:"problems,omitempty"` // problems of the policy, see cutProblems
	Cannot     string   `json:"cannot,omitempty"`
	LocalFrom  int64    `json:"local_from,omitempty"`
	LocalUntil int64    `json:"local_until,omitempty"`

	// Each request counts in one of Admitted, Refused and Undecided.
	Admitted  int64           `json:"admitted"`
	Refused   int64           `json:"refused"`
	Undecided int64           `json:"undecided"`
	Locally   int64           `json:"locally"` // admitted or refused without the database
	Busiest   json.RawMessage `json:"busiest"` // {prefix: [admitted, refused]}

	// The first and the last request of the last series of undecided requests, and what on_error did with
	// the requests of the series. A pause of seriesPause ends a series.
	UndecidedFrom     int64 `json:"undecided_from,omitempty"`
	UndecidedAt       int64 `json:"undecided_at,omitempty"`
	UndecidedAdmitted int64 `json:"undecided_admitted"`
	UndecidedRefused  int64 `json:"undecided_refused"`
}

const seriesPause = time.Hour

// LimitReport counts the requests of a limit.
type LimitReport struct {
	// Leased counts requests that a lease admits and that Count does not count; atomic.
	Leased int64

	prefix            string
	admitted, refused int64
}

// processEpoch is the epoch of this process.
var processEpoch = time.Now().UnixMicro()

// reports holds the reports of this process, by name and DSN.
var reports = struct {
	mu      sync.Mutex // guards reports
	reports map[string]*Report
}{reports: map[string]*Report{}}

func newReport() *Report { return &Report{limits: map[string]*LimitReport{}} }

// Join returns the row of this process for a store on a database, with its name, epoch and Report. Stores
// with the same name and DSN have one Report.
func Join(name, dsn string) *Node {
	reports.mu.Lock()
	defer reports.mu.Unlock()
	r := reports.reports[name+" "+dsn]
	if r == nil {
		r = newReport()
		reports.reports[name+" "+dsn] = r
	}
	r.mu.Lock()
	r.stores++
	r.mu.Unlock()
	return &Node{Name: name, Epoch: processEpoch, Report: r}
}

// leave records that a store has ended, and reports whether it was the last one with the row.
func (r *Report) leave() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stores--
	return r.stores <= 0
}

// Of returns the counts of a limit. The counts of limits beyond maxReported appear in no row.
func (r *Report) Of(prefix string) *LimitReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.limits[prefix]; l != nil {
		return l
	}
	return r.add(prefix)
}

// add implements Of for the first use of a prefix. The caller holds the mutex.
func (r *Report) add(prefix string) *LimitReport {
	l := &LimitReport{prefix: prefix}
	if len(r.limits) < maxReported {
		r.limits[prefix] = l
	}
	return l
}

// Undecided counts a request without a decision, which on_error has admitted or refused.
func (r *Report) Undecided(admitted bool) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	row, now := &r.row, time.Now().UnixMicro()
	if now-row.UndecidedAt > seriesPause.Microseconds() {
		row.UndecidedFrom, row.UndecidedAdmitted, row.UndecidedRefused = now, 0, 0
	}
	row.Undecided++
	row.UndecidedAt = now
	if admitted {
		row.UndecidedAdmitted++
	} else {
		row.UndecidedRefused++
	}
}

// Count counts a decided request, in total and for each limit that it is charged to or that refuses it.
func (r *Report) Count(admitted bool, hits []ratelimit.Hit, decisions []ratelimit.Decision) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if admitted {
		r.row.Admitted++
	} else {
		r.row.Refused++
	}
	local := int64(0)
	for i := range decisions {
		if decisions[i].Source == ratelimit.FromMemory {
			local = 1
		}
		if hits[i].Independent || !admitted && decisions[i].Allowed {
			continue
		}
		l := r.limits[hits[i].Limit.Prefix]
		if l == nil {
			l = r.add(hits[i].Limit.Prefix)
		}
		if admitted {
			l.admitted++
		} else {
			l.refused++
		}
	}
	r.row.Locally += local
}

// makeRow returns the column report as JSON, with the busiest of the counted limits. cannot is the reason why
// the process makes no decisions, or "".
func (r *Report) makeRow(n *Node, now time.Time, cannot string, local *Local) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !local.Since.IsZero() {
		r.row.LocalFrom = local.Since.UnixMicro()
		r.row.LocalUntil = local.Last.UnixMicro()
	}
	row := r.row
	row.Version, row.Region, row.Cannot = n.Version, n.Region, cannot
	row.Clock = now.UnixMicro()
	var busy []LimitReport
	for _, l := range r.limits {
		leased := atomic.LoadInt64(&l.Leased)
		row.Admitted += leased
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
	row.Busiest = json.RawMessage("{}")
	for i := 0; i < len(busy) && i < maxBusy; i++ {
		busiest[busy[i].prefix] = []int64{busy[i].admitted, busy[i].refused}
		data, err := json.Marshal(busiest)
		if err != nil || len(data) > busyBytes {
			break
		}
		row.Busiest = data
	}
	data, _ := json.Marshal(row) // cannot fail for a row
	return string(data)
}

// cutProblems returns the first problems, up to maxProblems bytes, and the number of the problems left out.
func cutProblems(problems []string) []string {
	var cut []string
	left := maxProblems
	for i, text := range problems {
		if len(text) > left {
			text = strings.ToValidUTF8(text[:left], "") + " …"
			if more := len(problems) - i - 1; more > 0 {
				text += " and " + strconv.Itoa(more) + " more"
			}
			return append(cut, text)
		}
		cut = append(cut, text)
		left -= len(text)
	}
	return cut
}
