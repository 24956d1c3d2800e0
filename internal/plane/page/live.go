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
	Kind     string            `json:"kind"`
	Started  int64             `json:"started"` // in microseconds since 1970
	At       int64             `json:"at"`      // in milliseconds since 1970, by the clock of the proxy
	Handlers []shownHandler    `json:"handlers"`
	Stores   []shownStore      `json:"stores"`
	Seen     []history.Watched `json:"seen"` // by each history
}

type shownHandler struct {
	OnError string       `json:"on_error"`
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

// shownStore is what a store has counted, or several together.
type shownStore struct {
	// Counts are named as the proxy names them: see storeCounts.
	Counts     map[string]int64 `json:"counts"`
	Errors     map[string]int64 `json:"errors"`
	LocalSince int64            `json:"local_since"` // in milliseconds since 1970; 0: the database decides
	Times      shownHistogram   `json:"times_us,omitzero"`
}

// shownHistogram has the counts of chain.Histogram.
type shownHistogram struct {
	Counts []int64 `json:"counts"`
	Sum    int64   `json:"sum"`
}

// outcomes are how many requests passed, were refused, and had no decision; or how many a second.
type outcomes struct {
	Allowed float64 `json:"allowed"`
	Refused float64 `json:"refused"`
	Failed  float64 `json:"failed"`
}

// texts are rates for people. Nil is not known.
func (o *outcomes) texts() (allowed, refused, failed string) {
	if o == nil {
		return dash, dash, dash
	}
	return rateText(o.Allowed), rateText(o.Refused), rateText(o.Failed)
}

// sum is what became of all requests of a report.
func (r *report) sum() outcomes {
	var o outcomes
	for _, counts := range r.counts() {
		for kind, n := range counts {
			switch history.OutcomeKind(kind) {
			case history.Allowed:
				o.Allowed += float64(n)
			case history.Limited, history.Blocked, history.Rejected:
				o.Refused += float64(n)
			case history.Failed:
				o.Failed += float64(n)
			}
		}
	}
	return o
}

// counts are all requests by prefix, and of each by history.OutcomeKind.
func (r *report) counts() map[string][]int64 {
	sums := map[string][]int64{}
	for _, seen := range r.Seen {
		for prefix, counts := range seen.ByPrefix {
			sum := sums[prefix]
			if missing := len(counts) - len(sum); missing > 0 {
				sum = append(sum, make([]int64, missing)...)
			}
			for kind, n := range counts {
				sum[kind] += n
			}
			sums[prefix] = sum
		}
	}
	return sums
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

// without is what becomes of requests without a decision of the database, as a name of ways, and the first of these if
// it depends on the handler.
func (r *report) without() string {
	all := r.onError()
	for _, name := range []string{"open", "local"} {
		if slices.Contains(all, wayOf(name).setting) || len(all) == 0 {
			return name
		}
	}
	return "closed"
}

// stores adds up the stores, but of the histograms only Times. LocalSince is the first.
func (r *report) stores() shownStore {
	sum := shownStore{Counts: map[string]int64{}, Errors: map[string]int64{}}
	for _, s := range r.Stores {
		for name, n := range s.Counts {
			sum.Counts[name] += n
		}
		for class, n := range s.Errors {
			sum.Errors[class] += n
		}
		if s.LocalSince > 0 && (sum.LocalSince == 0 || s.LocalSince < sum.LocalSince) {
			sum.LocalSince = s.LocalSince
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

// p99 is the time in milliseconds below which 99 % of what was counted since before lie; nil: nothing was counted.
// Bucket i has the values from 1<<(i-1) to 1<<i.
func (h *shownHistogram) p99(before shownHistogram) *float64 {
	since := slices.Clone(h.Counts)
	total := int64(0)
	for i := range since {
		if i < len(before.Counts) {
			since[i] = max(since[i]-before.Counts[i], 0)
		}
		total += since[i]
	}
	rank := 0.99 * float64(total)
	for i, n := range since {
		if n > 0 && rank <= float64(n) {
			low := float64(int64(1) << i / 2)
			ms := milliseconds(low + (float64(int64(1)<<i)-low)*rank/float64(n))
			return &ms
		}
		rank -= float64(n)
	}
	return nil
}

func milliseconds(us float64) float64 { return float64(int64(us/10+0.5)) / 100 }

// proxy is a row of the registry, with the last two reports.
type proxy struct {
	admin.Node
	now, before *report   // nil: there is none
	failed      time.Time // when requests had no decision last
	decided     time.Time // when requests had decisions last, and none was without
}

// rates are requests a second between the two reports; nil: not known.
func (p *proxy) rates() *outcomes {
	if p.now == nil || p.before == nil || len(p.now.Seen) == 0 || p.now.At <= p.before.At {
		return nil
	}
	seconds := float64(p.now.At-p.before.At) / 1000
	now, before := p.now.sum(), p.before.sum()
	rate := func(now, before float64) float64 { return max(now-before, 0) / seconds }
	return &outcomes{rate(now.Allowed, before.Allowed), rate(now.Refused, before.Refused), rate(now.Failed, before.Failed)}
}

// failing is what the proxy does now with requests without a decision of the database, as a name of ways; "" if it has
// none.
func (p *proxy) failing() string {
	if p.now == nil || !p.Live {
		return ""
	}
	failed := !p.failed.IsZero() && time.Since(p.failed) <= failingTime && !p.decided.After(p.failed)
	switch without := p.now.without(); {
	case failed && without != "local":
		return without
	case p.now.stores().LocalSince > 0:
		return "local"
	case failed:
		return "open" // it could not limit these by itself
	}
	return ""
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
		if now.Failed > before.Failed || stores.LocalSince == 0 && stores.Counts["failures"] > p.now.stores().Counts["failures"] {
			p.failed = at
		} else if stores.LocalSince == 0 && stores.Counts["batches"] > p.now.stores().Counts["batches"] {
			p.decided = at
		}
		p.now, p.before = &r, p.now
	}
}

// rates are those of all live proxies; nil while none is known. The caller holds the mutex.
func (c *collector) rates() *outcomes {
	var sum *outcomes
	for _, p := range c.proxies {
		if one := p.rates(); one != nil && p.Live {
			if sum == nil {
				sum = &outcomes{}
			}
			sum.Allowed += one.Allowed
			sum.Refused += one.Refused
			sum.Failed += one.Failed
		}
	}
	return sum
}
