package page

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// shownProxy is a proxy as the page lists it.
type shownProxy struct {
	admin.Node
	State   string      `json:"state"` // see admin.Node.State
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
	for i := range c.proxies {
		p := &c.proxies[i]
		s := shownProxy{Node: *p, State: p.State(), Remarks: []shownText{}}
		s.SecondsAgo = rounded(p.SecondsAgo)
		for _, r := range c.remarks(p) {
			s.Remarks = append(s.Remarks, r.shownText)
		}
		shown = append(shown, s)
	}
	return map[string]any{"proxies": shown}
}

// remark is something about a proxy that people should know: a predicate, whose subject is the proxy. The banner has
// those that are loud, with the name of the proxy.
type remark struct {
	shownText
	loud bool
}

// remarks are what people should know of a proxy. The caller holds the mutex.
func (c *collector) remarks(p *admin.Node) (all []remark) {
	say := func(kind, text string) { all = append(all, remark{shownText{"", text, kind}, false}) }
	warn := func(text string) { all = append(all, remark{shownText{"", text, levelWarn}, true}) }
	if p.LocalFrom != nil && p.LocalUntil != nil {
		say("", "has limited by itself from "+clock(*p.LocalFrom, c.now)+" to "+clock(*p.LocalUntil, c.now)+".")
	}
	switch {
	case p.Ended != nil:
		say("", "ended at "+clock(*p.Ended, c.now)+".")
	case !p.Live:
		gone := "is gone: it was last seen " + span(time.Duration(p.SecondsAgo*float64(time.Second))) + " ago."
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
	if !p.Policy && len(c.modes) > 0 {
		say(levelWarn, "has no policy, so the rules do not apply there.")
	}
	return all
}

// lost reports whether a proxy vanished a while ago, and none of its name or host decides since.
func (c *collector) lost(p *admin.Node) bool {
	host, _, _ := strings.Cut(p.Node, "/") // as the default of node_name has it
	return !p.Live && p.Ended == nil && !p.Elsewhere && p.SecondsAgo < lostTime.Seconds() && !slices.ContainsFunc(c.proxies, func(other admin.Node) bool {
		same, _, _ := strings.Cut(other.Node, "/")
		return other.Live && !other.Elsewhere && same == host && other.Cannot == nil
	})
}
