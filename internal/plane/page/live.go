package page

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// report is what a proxy writes into its row of the registry while a page is open: see edge.Show.
type report struct {
	Kind     string             `json:"kind"`
	Started  int64              `json:"started"` // in microseconds since 1970
	At       int64              `json:"at"`      // in milliseconds since 1970, by the clock of the proxy
	History  bool               `json:"history"`
	Handlers []shownHandler     `json:"handlers"`
	Stores   []shownStore       `json:"stores"`
	Counts   map[string][]int64 `json:"counts"` // by prefix, and of each by history.OutcomeKind
	Top      struct {
		Since                              int64
		Exact                              bool
		Keys, Users, Addresses, Rules, All []shownName
	} `json:"top"`
}

type shownHandler struct {
	OnError string       `json:"on_error"`
	Policy  bool         `json:"policy"`
	Limits  []shownLimit `json:"limits"`
}

// shownLimit is a limit of a configuration.
type shownLimit struct {
	Prefix    string  `json:"prefix"`
	Key       string  `json:"key"`
	Algorithm string  `json:"algorithm"`
	Events    int64   `json:"events"`
	WindowUS  int64   `json:"window_us"`
	Burst     int64   `json:"burst"`
	Calendar  int     `json:"calendar"`
	TimeZone  string  `json:"time_zone"`
	Anchor    int64   `json:"anchor"`
	Durable   bool    `json:"durable"`
	Lease     float64 `json:"lease"`
	Mode      string  `json:"mode"`
	Varies    bool    `json:"varies"`
	Settle    string  `json:"settle"`
	WaitMS    int64   `json:"wait_ms"`
}

// limit is the limit as the store has it; nil for an algorithm that this program does not know.
func (l *shownLimit) limit() *ratelimit.Limit {
	algorithm, err := ratelimit.ParseAlgorithm(l.Algorithm)
	if err != nil {
		return nil
	}
	limit := &ratelimit.Limit{
		Prefix: l.Prefix, Algorithm: algorithm, Events: l.Events, Window: time.Duration(l.WindowUS) * time.Microsecond, Burst: l.Burst,
		Calendar: ratelimit.Calendar(l.Calendar), Zone: l.TimeZone, Anchor: l.Anchor, Durable: l.Durable,
	}
	if limit.Validate() != nil {
		return nil
	}
	return limit
}

type shownStore struct {
	Requests    int64            `json:"requests"`
	Batches     int64            `json:"batches"`
	Failures    int64            `json:"failures"`
	Blocked     int64            `json:"blocked"`
	BlockedKeys int64            `json:"blocked_keys"`
	Leased      int64            `json:"leased"`
	LeasedUnits int64            `json:"leased_units"`
	Leases      int64            `json:"leases"`
	Waiting     int64            `json:"waiting"`
	InFlight    int64            `json:"in_flight"`
	LocalSince  int64            `json:"local_since"` // in milliseconds since 1970; 0: the database decides
	Errors      map[string]int64 `json:"errors"`
	Times       shownHistogram   `json:"times_us"`
}

// shownHistogram has the counts of engine.Histogram.
type shownHistogram struct {
	Counts []int64 `json:"counts"`
	Sum    int64   `json:"sum"`
}

// shownName is a sender, as an array: prefix, name, requests, refused, failed.
type shownName struct {
	prefix, name              string
	requests, refused, failed int64
}

func (n *shownName) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&n.prefix, &n.name, &n.requests, &n.refused, &n.failed})
}

// handled is how many requests passed, were refused, and had no decision.
type handled struct{ allowed, refused, failed int64 }

// sum is the handled of all requests of a report.
func (r *report) sum() handled {
	var t handled
	for _, counts := range r.Counts {
		for kind, n := range counts {
			switch history.OutcomeKind(kind) {
			case history.Allowed:
				t.allowed += n
			case history.Limited, history.Blocked, history.Rejected:
				t.refused += n
			case history.Failed:
				t.failed += n
			}
		}
	}
	return t
}

// onError are the different values of on_error.
func (r *report) onError() []string {
	all := []string{}
	for _, h := range r.Handlers {
		if h.OnError != "" && !slices.Contains(all, h.OnError) {
			all = append(all, h.OnError)
		}
	}
	slices.Sort(all)
	return all
}

// without is what becomes of requests without a decision of the database: "open", "local" or "closed", and the first
// of these if it depends on the handler.
func (r *report) without() string {
	all := r.onError()
	switch {
	case slices.Contains(all, "allow"), len(all) == 0:
		return "open"
	case slices.Contains(all, "local"):
		return "local"
	}
	return "closed"
}

// stores adds up the stores, but of the histograms only Times.
func (r *report) stores() shownStore {
	sum := shownStore{Errors: map[string]int64{}}
	for _, s := range r.Stores {
		sum.Batches += s.Batches
		sum.Requests += s.Requests
		sum.Failures += s.Failures
		sum.Blocked += s.Blocked
		sum.Leased += s.Leased
		sum.BlockedKeys += s.BlockedKeys
		sum.LeasedUnits += s.LeasedUnits
		sum.Leases += s.Leases
		sum.Waiting += s.Waiting
		sum.InFlight += s.InFlight
		if s.LocalSince > 0 && (sum.LocalSince == 0 || s.LocalSince < sum.LocalSince) {
			sum.LocalSince = s.LocalSince
		}
		for class, n := range s.Errors {
			sum.Errors[class] += n
		}
		sum.Times.add(s.Times)
	}
	return sum
}

func (h *shownHistogram) add(other shownHistogram) {
	for i, n := range other.Counts {
		if i == len(h.Counts) {
			h.Counts = append(h.Counts, 0)
		}
		h.Counts[i] += n
	}
	h.Sum += other.Sum
}

// percentile is the value below which a share of what was counted since before lies; false: nothing was counted.
// Bucket i has the values from 1<<(i-1) to 1<<i.
func (h *shownHistogram) percentile(before shownHistogram, share float64) (float64, bool) {
	since := make([]int64, len(h.Counts))
	total := int64(0)
	for i, n := range h.Counts {
		if i < len(before.Counts) {
			n -= before.Counts[i]
		}
		since[i] = max(n, 0)
		total += since[i]
	}
	if total == 0 {
		return 0, false
	}
	rank := share * float64(total)
	for i, n := range since {
		if rank > float64(n) {
			rank -= float64(n)
			continue
		}
		low, high := 0.0, 1.0
		if i > 0 {
			low, high = float64(int64(1)<<(i-1)), float64(int64(1)<<i)
		}
		return low + (high-low)*rank/float64(max(n, 1)), true
	}
	return float64(int64(1) << len(since)), true
}

// proxy is a row of the registry, with the last two reports.
type proxy struct {
	admin.Node
	now, before *report   // nil: there is none
	failed      time.Time // when requests had no decision last
	decided     time.Time // when requests had decisions last, and none was without
}

// rates are requests a second between the two reports.
type rates struct {
	Allowed float64 `json:"allowed"`
	Refused float64 `json:"refused"`
	Failed  float64 `json:"failed"`
}

func (p *proxy) rates() *rates {
	if p.now == nil || p.before == nil || !p.now.History || p.now.At <= p.before.At {
		return nil
	}
	seconds := float64(p.now.At-p.before.At) / 1000
	now, before := p.now.sum(), p.before.sum()
	rate := func(now, before int64) float64 { return float64(max(now-before, 0)) / seconds }
	return &rates{rate(now.allowed, before.allowed), rate(now.refused, before.refused), rate(now.failed, before.failed)}
}

// update takes what the registry says now. A report that cannot be read is none.
func (p *proxy) update(n *admin.Node, at time.Time) {
	p.Node = *n
	if n.Report == nil {
		p.now, p.before = nil, nil
		return
	}
	var r report
	if json.Unmarshal(n.Report, &r) != nil {
		return
	}
	switch {
	case p.now == nil || r.Started != p.now.Started:
		p.now, p.before = &r, nil
	case r.At != p.now.At:
		now, before, stores := r.sum(), p.now.sum(), r.stores()
		if now.failed > before.failed || stores.LocalSince == 0 && stores.Failures > p.now.stores().Failures {
			p.failed = at
		} else if stores.LocalSince == 0 && stores.Batches > p.now.stores().Batches {
			p.decided = at
		}
		p.now, p.before = &r, p.now
	}
}

// rates are those of all live proxies; nil while none is known. The caller holds the mutex.
func (c *collector) rates() *rates {
	var sum *rates
	for _, p := range c.proxies {
		if one := p.rates(); one != nil && p.Live {
			if sum == nil {
				sum = &rates{}
			}
			sum.Allowed += one.Allowed
			sum.Refused += one.Refused
			sum.Failed += one.Failed
		}
	}
	return sum
}
