package page

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// shownProxy is a proxy as the page lists it.
type shownProxy struct {
	admin.Node
	State     string `json:"state"` // see admin.Node.State
	*reported        // nil: it reports nothing
	// Remarks are for people.
	Remarks []shownText `json:"remarks"`
}

// reported is what a proxy says of itself.
type reported struct {
	Kind       string           `json:"kind"`
	OnError    []string         `json:"on_error"`
	Failing    string           `json:"failing"` // see proxy.failing
	Counts     map[string]int64 `json:"counts"`
	Errors     map[string]int64 `json:"errors"`
	LocalSince *time.Time       `json:"local_since"`
	P99MS      *float64         `json:"p99_ms"`
	Now        *edge.Rates      `json:"now"`
	UpSince    time.Time        `json:"up_since"`
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
		s := shownProxy{Node: p.Node, State: p.State(), reported: p.reported(), Remarks: []shownText{}}
		s.SecondsAgo = rounded(p.SecondsAgo)
		for _, r := range c.remarks(p) {
			s.Remarks = append(s.Remarks, r.shownText)
		}
		shown = append(shown, s)
	}
	return map[string]any{"proxies": shown}
}

// reported is what a live proxy reports; nil: it does not.
func (p *proxy) reported() *reported {
	if !p.reports() {
		return nil
	}
	r := &reported{
		Kind: p.now.Kind, OnError: p.now.OnError, Failing: p.failing(), Counts: p.now.Counts, Errors: errorsText(p.now.Errors),
		P99MS: p.now.P99MS, Now: p.now.Now, UpSince: time.UnixMicro(p.now.Started).UTC(),
	}
	if since := p.now.LocalSince; since > 0 {
		at := time.UnixMilli(since).UTC()
		r.LocalSince = &at
	}
	return r
}

// remark is something about a proxy that people should know: a predicate, whose subject is the proxy. The banner has
// those that are loud, with the name of the proxy.
type remark struct {
	shownText
	loud bool
}

// remarks are what people should know of a proxy. The caller holds the mutex.
func (c *collector) remarks(p *proxy) (all []remark) {
	say := func(kind, text string) { all = append(all, remark{shownText{"", text, kind}, false}) }
	warn := func(text string) { all = append(all, remark{shownText{"", text, levelWarn}, true}) }
	switch failing := p.failing(); {
	case failing != "":
		w, since := wayOf(failing), ""
		if at := p.now.LocalSince; failing == "local" && at > 0 {
			since = " since " + clock(time.UnixMilli(at), c.now)
		}
		say(levelBad, w.does+since+w.because)
	case p.LocalFrom != nil && p.LocalUntil != nil:
		say("", "has limited by itself from "+clock(*p.LocalFrom, c.now)+" to "+clock(*p.LocalUntil, c.now)+".")
	}
	switch {
	case p.Ended != nil:
		say("", "ended at "+clock(*p.Ended, c.now)+".")
	case !p.Live:
		gone := "is gone: it was last seen " + span(time.Duration(p.SecondsAgo*float64(time.Second))) + " ago."
		if p.now != nil {
			gone += " If it runs without the database, it " + wayOf(p.without()).does + "."
		}
		all = append(all, remark{shownText{"", gone, levelBad}, c.lost(p)})
	}
	if !p.Live {
		return all
	}
	if p.Cannot != nil {
		warn("lacks privileges. Run: " + oneLine(*p.Cannot))
	}
	if p.Policy && p.Behind == nil {
		warn("has not read the policy yet.")
	} else if p.Policy && *p.Behind > 0 {
		warn(fmt.Sprintf("has yet to apply %s of the policy.", counted(*p.Behind, "change", "changes")))
	}
	if len(p.Problems) > 0 {
		warn("cannot use " + plural(len(p.Problems), "a rule", "some rules") + ": " + strings.Join(p.Problems, "; "))
	}
	if p.Elsewhere {
		say(levelWarn, "counts in another database, which this page does not show.")
		return all
	}
	if c.pause != nil != p.Paused {
		say(levelWarn, map[bool]string{true: "does not obey the pause yet.", false: "still obeys a pause that has ended."}[c.pause != nil])
	}
	if p.now == nil {
		if time.Since(c.began) > loadingTime {
			warn("reports nothing.")
		}
		return all
	}
	if len(p.now.Seen) == 0 {
		say(levelWarn, "has no history, so what happens to its requests is not counted here.")
	}
	if !p.Policy && len(c.modes) > 0 {
		say(levelWarn, "has no policy, so the rules do not apply there.")
	}
	counts := errorsText(p.now.Errors)
	var errors []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		errors = append(errors, name+" × "+number(counts[name]))
	}
	if len(errors) > 0 {
		say(levelWarn, "has had errors of the database: "+strings.Join(errors, ", ")+".")
	}
	return all
}

// lost reports whether a proxy vanished a while ago, and none of its name or host decides since.
func (c *collector) lost(p *proxy) bool {
	host, _, _ := strings.Cut(p.Node.Node, "/") // as the default of node_name has it
	return !p.Live && p.Ended == nil && !p.Elsewhere && p.SecondsAgo < lostTime.Seconds() && !slices.ContainsFunc(c.proxies, func(other *proxy) bool {
		same, _, _ := strings.Cut(other.Node.Node, "/")
		return other.Live && !other.Elsewhere && same == host && other.Cannot == nil
	})
}
