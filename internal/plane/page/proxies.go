package page

import (
	"time"
)

// shownProxy is a proxy as the page lists it. Numbers are nil unless it reports them.
type shownProxy struct {
	Node        string           `json:"node"`
	Region      *string          `json:"region"`
	Version     *string          `json:"version"`
	Kind        *string          `json:"kind"`
	Live        bool             `json:"live"`
	Seen        time.Time        `json:"seen"`
	SecondsAgo  float64          `json:"seconds_ago"`
	Policy      bool             `json:"policy"`
	Behind      *int64           `json:"behind"`
	Paused      bool             `json:"paused"`
	Problems    []string         `json:"problems"`
	Lacks       []string         `json:"lacks"`
	OnError     []string         `json:"on_error"`
	Failing     *string          `json:"failing"`
	LocalSince  *time.Time       `json:"local_since"`
	LocalFrom   *time.Time       `json:"local_from"`
	LocalUntil  *time.Time       `json:"local_until"`
	Leases      *int64           `json:"leases"`
	LeasedUnits *int64           `json:"leased_units"`
	Waiting     *int64           `json:"waiting"`
	InFlight    *int64           `json:"in_flight"`
	BlockedKeys *int64           `json:"blocked_keys"`
	P50MS       *float64         `json:"p50_ms"`
	P99MS       *float64         `json:"p99_ms"`
	Errors      map[string]int64 `json:"errors"`
	Now         *rates           `json:"now"`
	UpSince     *time.Time       `json:"up_since"`
}

func (c *collector) proxyList() map[string]any {
	shown := []shownProxy{}
	for _, p := range c.proxies {
		shown = append(shown, c.shownProxy(p))
	}
	return map[string]any{"proxies": shown}
}

func (c *collector) shownProxy(p *proxy) shownProxy {
	s := shownProxy{
		Node: p.Node.Node, Region: p.Region, Version: p.Version, Live: p.Live, Seen: p.Seen, SecondsAgo: rounded(p.SecondsAgo), Policy: p.Policy, Behind: p.Behind, Paused: p.Paused,
		Problems: p.Problems, Lacks: c.lacks(p), OnError: []string{}, Errors: map[string]int64{}, LocalFrom: p.LocalFrom, LocalUntil: p.LocalUntil,
	}
	if s.Problems == nil {
		s.Problems = []string{}
	}
	if p.now == nil || !p.Live {
		return s
	}
	sum := p.now.stores()
	s.Kind, s.OnError, s.Errors, s.Now = &p.now.Kind, p.now.onError(), errorsText(sum.Errors), p.rates()
	s.Leases, s.LeasedUnits, s.Waiting, s.InFlight, s.BlockedKeys = &sum.Leases, &sum.LeasedUnits, &sum.Waiting, &sum.InFlight, &sum.BlockedKeys
	if p.before != nil {
		s.P50MS, s.P99MS = percentiles(&sum.Times, p.before.stores().Times)
	}
	if failing := p.failing(); failing != "" {
		s.Failing = &failing
	}
	if sum.LocalSince > 0 {
		since := time.UnixMilli(sum.LocalSince).UTC()
		s.LocalSince = &since
	}
	up := time.UnixMicro(p.now.Started).UTC()
	s.UpSince = &up
	return s
}

// lacks is what is wrong with a proxy, or what it does not have.
func (c *collector) lacks(p *proxy) []string {
	lacks := []string{}
	if !p.Live {
		return append(lacks, "is gone")
	}
	if p.Epoch == 0 {
		lacks = append(lacks, "is of an older version, which obeys no pause")
	}
	if c.pause != nil != p.Paused && p.Epoch != 0 && !p.Elsewhere {
		lacks = append(lacks, plural(map[bool]int{true: 1}[c.pause != nil], "does not obey the pause yet", "still obeys a pause that has ended"))
	}
	if p.Policy && p.Behind == nil {
		lacks = append(lacks, "has not read the policy")
	} else if p.Policy && *p.Behind > 0 {
		lacks = append(lacks, "does not obey the newest policy yet")
	}
	if len(p.Problems) > 0 {
		lacks = append(lacks, "cannot use "+plural(len(p.Problems), "a rule", "some rules"))
	}
	if p.Elsewhere {
		return append(lacks, "counts in another database, which this page does not show")
	}
	switch {
	case p.now == nil && time.Since(c.began) > loadingTime:
		lacks = append(lacks, "reports nothing: it is of an older version")
	case p.now != nil && !p.now.History:
		lacks = append(lacks, "history is off, so what happens to its requests is not counted here")
	}
	if p.now != nil && !p.Policy && len(c.modes) > 0 {
		lacks = append(lacks, "has no policy, so the rules do not apply there")
	}
	return lacks
}
