package edge

import (
	"encoding/json"
	"sort"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/chain"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// liveRow is the row of this process in the registry of a database, and all that it shows.
type liveRow struct {
	kind     string
	users    int // how many stores have the row, also those that are being opened
	stores   []*store.Store
	handlers map[int]*Site // by the order in which they came
	next     int

	last    *Report // with which the next one is compared, and its time; nil: no page is open
	at      time.Time
	failed  time.Time // when requests had no decision last
	decided time.Time // when requests had decisions last, and none was without
	// counted are the requests of last, of each history by prefix.
	counted map[*history.Writer]map[string][]int64
}

// nodeRows are the rows of this process by name and DSN. A row stays until its last store is closed.
var nodeRows = struct {
	mu   sync.Mutex // guards rows, and all that they have
	rows map[string]*liveRow
}{rows: map[string]*liveRow{}}

// leave takes a store off the row, and reports whether it was the last one. The caller holds the mutex.
func (row *liveRow) leave(left *store.Store) bool {
	row.users--
	for i := range row.stores {
		if row.stores[i] == left {
			row.stores = append(row.stores[:i:i], row.stores[i+1:]...)
			break
		}
	}
	return row.users == 0
}

// show has pages show a handler, until forget is called.
func (d *Database) show(h *Site) (forget func()) {
	row := d.row
	if row == nil {
		return nil
	}
	nodeRows.mu.Lock()
	defer nodeRows.mu.Unlock()
	number := row.next
	row.next++
	row.handlers[number] = h
	return func() {
		nodeRows.mu.Lock()
		delete(row.handlers, number)
		nodeRows.mu.Unlock()
	}
}

// Report is what a proxy does now: the text in its row of the registry while a page is open.
type Report struct {
	Kind    string `json:"kind"`
	Started int64  `json:"started"` // in microseconds since 1970
	// OnError are the different values of on_error, and Limits the different limits of the configuration.
	OnError []string        `json:"on_error"`
	Limits  []ReportedLimit `json:"limits"`
	// Counts are what all stores have done, and what there is now. Errors are those of the database by class, and
	// Times how long batches took in microseconds.
	Counts map[string]int64 `json:"counts"`
	Errors map[string]int64 `json:"errors"`
	Times  chain.Histogram  `json:"times_us"`
	// LocalSince is since when limits are local, in milliseconds since 1970; 0: the database decides.
	LocalSince int64 `json:"local_since"`
	// Requests are all requests by prefix, and of each by history.OutcomeKind. Seen are the senders, by history.
	Requests map[string][]int64 `json:"requests"`
	Seen     []history.Watched  `json:"seen"`
	// Now are requests a second, and P99MS the time in milliseconds within which 99 % of batches had their answer, both
	// since the last report; nil: not known.
	Now   *Rates   `json:"now"`
	P99MS *float64 `json:"p99_ms"`
	// Outage is OutageNow, OutageOver or "".
	Outage string `json:"outage"`
}

// The values of Report.Outage.
const (
	OutageNow  = "now"  // requests have no decision
	OutageOver = "over" // that is just over

	// failingTime is for how long Outage is OutageNow after the last request without a decision, unless requests have
	// decisions again. overTime is until when it is OutageOver, also after that request.
	failingTime = 10 * time.Second
	overTime    = 25 * time.Second
	// leastTime is the least time between two reports that are compared. Each store of a row writes it.
	leastTime = 500 * time.Millisecond
)

// ReportedLimit is a limit of a configuration.
type ReportedLimit struct {
	Limit   ratelimit.Limit `json:"limit"`
	Key     string          `json:"key"`
	Mode    string          `json:"mode"`
	OnError string          `json:"on_error"`
	Settle  string          `json:"settle"`
}

// Rates are how many requests a second passed, were refused, and had no decision.
type Rates struct {
	Allowed float64 `json:"allowed"`
	Refused float64 `json:"refused"`
	Failed  float64 `json:"failed"`
}

// live is what the process does now, as JSON. While no page is open it stops what is counted for pages.
func (row *liveRow) live(watched bool) string {
	nodeRows.mu.Lock()
	defer nodeRows.mu.Unlock()
	now := time.Now()
	r := &Report{Kind: row.kind, Started: started, OnError: []string{}, Limits: []ReportedLimit{}, Requests: map[string][]int64{}, Seen: []history.Watched{}}
	counted := map[*history.Writer]map[string][]int64{}
	for _, h := range row.handlers {
		if h.History != nil && counted[h.History] == nil {
			requests := map[string][]int64{}
			r.Seen = append(r.Seen, history.Watch(h.History, watched, requests))
			counted[h.History] = requests
			for prefix, counts := range requests {
				history.AddCounts(r.Requests, prefix, counts)
			}
		}
	}
	if !watched {
		row.last = nil
		return ""
	}
	row.addLimits(r)
	var stats chain.Stats
	for i := range row.stores {
		of := row.stores[i].Stats()
		stats.Add(&of)
		if local := row.stores[i].Local(); local.On && (r.LocalSince == 0 || local.Since.UnixMilli() < r.LocalSince) {
			r.LocalSince = local.Since.UnixMilli()
		}
	}
	r.Errors, r.Times = stats.Errors, stats.Times
	r.Counts = map[string]int64{
		"requests": stats.Requests, "batches": stats.Batches, "failures": stats.Failures, "blocked": stats.Blocked,
		"blocked_keys": stats.BlockedKeys, "leased": stats.Leased, "leased_units": stats.LeasedUnits, "leases": stats.Leases,
		"waiting": stats.Waiting, "in_flight": stats.InFlight,
	}
	row.compare(r, counted, now)
	text, err := json.Marshal(r)
	if err != nil {
		return "{}" // all values are numbers and texts
	}
	return string(text)
}

// addLimits adds what the configurations of the handlers say.
func (row *liveRow) addLimits(r *Report) {
	known, ways := map[ReportedLimit]bool{}, map[string]bool{"": true}
	for _, h := range row.handlers {
		onError := string(h.Decider.OnError)
		if !ways[onError] {
			ways[onError] = true
			r.OnError = append(r.OnError, onError)
		}
		for _, z := range h.Zones {
			l := ReportedLimit{Limit: *z.Hit.Limit, Key: z.KeyText, Mode: z.Mode.String(), OnError: onError}
			if z.Settle != nil {
				l.Settle = z.Settle.Text
			}
			if !known[l] {
				known[l] = true
				r.Limits = append(r.Limits, l)
			}
		}
	}
	sort.Strings(r.OnError)
}

// compare sets in a report what has happened since the last one, by the requests of each history.
func (row *liveRow) compare(r *Report, counted map[*history.Writer]map[string][]int64, now time.Time) {
	last := row.last
	switch {
	case last == nil:
		row.last, row.at, row.counted, row.failed, row.decided = r, now, counted, time.Time{}, time.Time{}
	case now.Sub(row.at) < leastTime:
		r.Now, r.P99MS = last.Now, last.P99MS
	default:
		rates := ratesOf(counted, row.counted, now.Sub(row.at).Seconds())
		if len(r.Seen) > 0 && len(last.Seen) > 0 {
			r.Now = &rates
		}
		r.P99MS = p99(r.Times.Counts, last.Times.Counts)
		isLocal := r.LocalSince > 0
		if rates.Failed > 0 || !isLocal && r.Counts["failures"] > last.Counts["failures"] {
			row.failed = now
		} else if !isLocal && r.Counts["batches"] > last.Counts["batches"] {
			row.decided = now
		}
		row.last, row.at, row.counted = r, now, counted
	}
	switch ago := now.Sub(row.failed); {
	case ago <= failingTime && !row.decided.After(row.failed):
		r.Outage = OutageNow
	case ago <= overTime:
		r.Outage = OutageOver
	}
}

// ratesOf are the requests between two reports, so many seconds apart. Those of a history that is in one report alone, as
// after a reload, are not known.
func ratesOf(now, before map[*history.Writer]map[string][]int64, seconds float64) Rates {
	r := Rates{}
	for of, requests := range now {
		old := before[of]
		if old == nil {
			continue
		}
		for prefix, counts := range requests {
			for kind, n := range counts {
				if kind < len(old[prefix]) {
					n -= old[prefix][kind]
				}
				rate := float64(n) / seconds
				switch history.OutcomeKind(kind) {
				case history.Allowed:
					r.Allowed += rate
				case history.Limited, history.Blocked, history.Rejected:
					r.Refused += rate
				case history.Failed:
					r.Failed += rate
				}
			}
		}
	}
	return r
}

// p99 is the time in milliseconds below which 99 % of what was counted since before lie; nil: nothing was counted.
func p99(counts, before []int64) *float64 {
	since := make([]int64, len(counts))
	total := int64(0)
	for i, n := range counts {
		if i < len(before) {
			n -= before[i]
		}
		if n > 0 { // else a store was closed
			since[i] = n
			total += n
		}
	}
	rank := 0.99 * float64(total)
	for i, n := range since {
		if n > 0 && rank <= float64(n) {
			low := float64(int64(1) << uint(i) / 2)
			us := low + (float64(int64(1)<<uint(i))-low)*rank/float64(n)
			ms := float64(int64(us/10+0.5)) / 100
			return &ms
		}
		rank -= float64(n)
	}
	return nil
}
