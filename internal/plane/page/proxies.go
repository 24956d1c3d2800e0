package page

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// shownProxy is a proxy as the page lists it. Numbers are nil unless it reports them.
type shownProxy struct {
	admin.Node
	Kind        *string          `json:"kind"`
	Lacks       []string         `json:"lacks"`
	OnError     []string         `json:"on_error"`
	Failing     *string          `json:"failing"`
	LocalSince  *time.Time       `json:"local_since"`
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
	// Cells and Remarks are the same for people: a row of a table, and what is below the row.
	Cells   []shownText `json:"cells"`
	Remarks []shownText `json:"remarks"`
}

// shownText is a text with its name, if it has one. Kind is "", good, warn or bad.
type shownText struct {
	Name string `json:"name,omitempty"`
	Text string `json:"text"`
	Kind string `json:"kind"`
}

func (c *collector) proxyList() map[string]any {
	shown := []shownProxy{}
	for _, p := range c.proxies {
		s := c.shownProxy(p)
		s.say(c.now)
		shown = append(shown, s)
	}
	return map[string]any{"proxies": shown}
}

func (c *collector) shownProxy(p *proxy) shownProxy {
	s := shownProxy{Node: p.Node, Lacks: c.lacks(p), OnError: []string{}, Errors: map[string]int64{}}
	s.SecondsAgo, s.Problems = rounded(p.SecondsAgo), slices.Concat([]string{}, p.Problems)
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
	if c.pause != nil != p.Paused && !p.Elsewhere {
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
		lacks = append(lacks, "reports nothing")
	case p.now != nil && !p.now.History:
		lacks = append(lacks, "history is off, so what happens to its requests is not counted here")
	}
	if p.now != nil && !p.Policy && len(c.modes) > 0 {
		lacks = append(lacks, "has no policy, so the rules do not apply there")
	}
	return lacks
}

// say sets the texts for people.
func (s *shownProxy) say(now time.Time) {
	cell := func(name, text, kind string) { s.Cells = append(s.Cells, shownText{name, text, kind}) }
	state, kind := "gone", "bad"
	switch {
	case s.Cannot != nil && s.Live:
		state = "cannot decide"
	case s.Live:
		state, kind = "live", "good"
	case s.Ended != nil:
		state, kind = "ended", ""
	}
	cell("State", state, kind)
	node := s.Node.Node
	if s.Region != nil {
		node += " (" + *s.Region + ")"
	}
	cell("Proxy", node, "")
	switch {
	case !s.Policy:
		cell("Policy", "none", "")
	case s.Behind == nil:
		cell("Policy", "unknown", "warn")
	case *s.Behind > 0:
		cell("Policy", number(*s.Behind)+" behind", "warn")
	default:
		cell("Policy", "newest", "")
	}
	version := dash
	if s.Version != nil {
		version = *s.Version
	}
	cell("Version", version, "")
	allowed, refused := dash, dash
	if s.Now != nil {
		allowed, refused = rateText(s.Now.Allowed), rateText(s.Now.Refused)
	}
	cell("Allowed", allowed, "")
	cell("Refused", refused, "")
	cell("Wait, p99", millisecondsText(s.P99MS), "")
	cell("Waiting", numberText(s.Waiting), "")
	cell("In flight", numberText(s.InFlight), "")
	leases := numberText(s.Leases)
	if s.Leases != nil && *s.Leases > 0 {
		leases += " (" + numberText(s.LeasedUnits) + " units)"
	}
	cell("Leases", leases, "")

	s.Remarks = []shownText{}
	remark := func(kind, text string) { s.Remarks = append(s.Remarks, shownText{"", text, kind}) }
	failing := ""
	if s.Failing != nil {
		failing = *s.Failing
	}
	switch {
	case failing == "open":
		remark("bad", "Failing open: requests without a decision pass.")
	case failing == "closed":
		remark("bad", "Failing closed: requests without a decision are refused.")
	case failing == "local" && s.LocalSince != nil:
		remark("bad", "Limits itself since "+clock(*s.LocalSince, now)+", at its share of each limit: the database makes no decisions.")
	case s.LocalFrom != nil && s.LocalUntil != nil:
		remark("", "Has limited itself from "+clock(*s.LocalFrom, now)+" to "+clock(*s.LocalUntil, now)+".")
	}
	if s.Cannot != nil && s.Live {
		remark("bad", "Lacks privileges. Run: "+oneLine(*s.Cannot))
	}
	switch {
	case s.Ended != nil:
		remark("", "Ended at "+clock(*s.Ended, now)+".")
	case !s.Live:
		remark("bad", "Gone for "+span(time.Duration(s.SecondsAgo*float64(time.Second)))+".")
	}
	var errors []string
	for _, name := range slices.Sorted(maps.Keys(s.Errors)) {
		if n := s.Errors[name]; n > 0 {
			errors = append(errors, fmt.Sprintf("%s × %s", name, number(n)))
		}
	}
	if len(errors) > 0 {
		remark("warn", "Errors of the database: "+strings.Join(errors, ", ")+".")
	}
	if s.Live {
		for _, text := range slices.Concat(s.Lacks, s.Problems) {
			remark("warn", text)
		}
	}
}
