package page

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

var errNoAnswer = errors.New("there is no answer yet")

// state returns the sections. While the database is down, all but the banner are as they were, or not known yet. The
// caller holds the mutex.
func (c *collector) state() map[string]any {
	if c.up && c.questions[questionLook].told {
		c.sections = map[string]any{
			"traffic": c.traffic(), "top": c.top(), "near": c.nearNow(), "proxies": c.proxyList(), "limits": c.limitList(), "bans": banList(c.bans),
			"changes": map[string]any{"changes": changeList(c.changes)},
		}
	}
	all := maps.Clone(c.sections)
	all["banner"] = c.banner()
	return all
}

// state returns all sections as JSON. Proxies go on reporting for so long.
func (s *Server) state(ctx context.Context, watch time.Duration) []byte {
	c := s.collector
	c.refresh(ctx, false, watch)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.text == nil {
		c.text = marshal(c.state())
	}
	return c.text
}

// section returns one section.
func (s *Server) section(ctx context.Context, name string) (any, error) {
	c := s.collector
	c.refresh(ctx, name == "near", watchTime)
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.state()[name]
	if found == nil {
		return nil, &downError{errNoAnswer}
	}
	return found, nil
}

// trafficFrom is when the minutes of the page begin.
func trafficFrom(now time.Time) time.Time {
	return now.Add(time.Minute - trafficTime).Truncate(time.Minute).UTC()
}

type trafficSection struct {
	StepSeconds int           `json:"step_seconds"`
	From        *time.Time    `json:"from"`
	Allowed     []float64     `json:"allowed"`
	Refused     []float64     `json:"refused"`
	Failed      []float64     `json:"failed"`
	Shadow      []float64     `json:"shadow"`
	Marks       []trafficMark `json:"marks"`
	Outages     []outage      `json:"outages"`
	Sums        *admin.Minute `json:"sums"`
}

// trafficMark is a change of the policy, in words.
type trafficMark struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
	By   string    `json:"by"`
	Kind string    `json:"kind"`
	Seq  int64     `json:"seq"`
}

func (c *collector) traffic() trafficSection {
	from := trafficFrom(c.now)
	t := trafficSection{StepSeconds: 60, From: &from, Marks: []trafficMark{}, Outages: c.outages(), Sums: &admin.Minute{Time: from}}
	minutes := map[int64]admin.Minute{}
	for _, m := range c.minutes {
		minutes[m.Time.Unix()] = m
	}
	for at := from; !at.After(c.now) && len(t.Allowed) < 60; at = at.Add(time.Minute) {
		m := minutes[at.Unix()]
		seconds := min(60, max(1, c.now.Sub(at).Seconds()))
		t.Allowed = append(t.Allowed, rounded(float64(m.Allowed)/seconds))
		t.Refused = append(t.Refused, rounded(float64(m.Refused)/seconds))
		t.Failed = append(t.Failed, rounded(float64(m.Failed)/seconds))
		t.Shadow = append(t.Shadow, rounded(float64(m.Shadow)/seconds))
		t.Sums.Allowed += m.Allowed
		t.Sums.Refused += m.Refused
		t.Sums.Failed += m.Failed
		t.Sums.Shadow += m.Shadow
	}
	if now := c.rates(); now != nil { // of the minute under way the history does not have all yet
		last := len(t.Allowed) - 1
		t.Allowed[last], t.Refused[last], t.Failed[last] = rounded(now.Allowed), rounded(now.Refused), rounded(now.Failed)
	}
	for i := range c.changes {
		if change := &c.changes[i]; change.At.After(from) {
			t.Marks = append(t.Marks, trafficMark{change.At, changeText(change), change.By, change.Kind, change.Seq})
		}
	}
	slices.Reverse(t.Marks)
	return t
}

// rounded leaves a rate a tenth.
func rounded(f float64) float64 { return float64(int64(f*10+0.5)) / 10 }

type topSection struct {
	From      *time.Time `json:"from"`
	Exact     bool       `json:"exact"`
	Requests  int64      `json:"requests"`
	Refused   int64      `json:"refused"`
	Failed    int64      `json:"failed"`
	Asking    []topName  `json:"asking"`
	Keys      []topName  `json:"keys"`
	Users     []topName  `json:"users"`
	Addresses []topName  `json:"addresses"`
	Rules     []topName  `json:"rules"`
	Remark    *string    `json:"note"`
}

// topName is a sender or a limit. Prefix and Key are those of a counter.
type topName struct {
	Prefix string `json:"prefix,omitempty"`
	Key    string `json:"key,omitempty"`
	admin.Name
	Text string `json:"text"` // for people
}

// say sets the texts of all lists.
func (t *topSection) say(names *ruleNames) {
	for _, list := range [][]topName{t.Asking, t.Keys, t.Users, t.Addresses, t.Rules} {
		for i := range list {
			n := &list[i]
			n.Text = n.Name.Name
			if n.Prefix != "" {
				n.Text = n.Key + " · " + strings.TrimPrefix(names.shown(n.Prefix), "rule/")
			}
		}
	}
	for i := range t.Rules {
		shown := names.shown(t.Rules[i].Name.Name)
		switch rule, isRule := strings.CutPrefix(shown, "rule/"); {
		case isRule:
			shown = "rule " + rule
		case !strings.HasPrefix(t.Rules[i].Name.Name, history.ReasonPrefix):
			shown = "limit " + shown
		}
		t.Rules[i].Text = shown
	}
}

// mostTop is how many names each list has.
const mostTop = 10

func (c *collector) top() topSection {
	t := topSection{Exact: true}
	var keys, users, addresses, rules topSums
	for _, p := range c.proxies {
		if p.now == nil || !p.now.History || !p.Live {
			continue
		}
		top := &p.now.Top
		from := time.Unix(top.Since, 0).UTC()
		if t.From == nil || from.Before(*t.From) {
			t.From = &from
		}
		t.Exact = t.Exact && top.Exact
		keys.add(top.Keys)
		users.add(top.Users)
		addresses.add(top.Addresses)
		rules.add(top.Rules)
		for _, all := range top.All {
			t.Requests += all.requests
			t.Refused += all.refused
			t.Failed += all.failed
		}
	}
	refused := func(n topName) int64 { return n.Refused }
	t.Asking = askingMost(&keys, &users, mostTop)
	t.Keys, t.Users = keys.most(refused, mostTop), users.most(refused, mostTop)
	t.Addresses, t.Rules = addresses.most(refused, mostTop), rules.most(refused, mostTop)
	t.say(c.rules)
	return t
}

// topSums adds up names of several proxies.
type topSums struct{ names map[string]topName }

func (s *topSums) add(names []shownName) {
	if s.names == nil {
		s.names = map[string]topName{}
	}
	for _, n := range names {
		sum := s.names[n.prefix+"\x00"+n.name]
		sum.Name.Name = strings.TrimSpace(n.prefix + " " + n.name)
		if n.prefix != "" {
			sum.Prefix, sum.Key = n.prefix, n.name
		}
		sum.Requests += n.requests
		sum.Refused += n.refused
		sum.Failed += n.failed
		s.names[n.prefix+"\x00"+n.name] = sum
	}
}

// most are the names with the most of something, without those that have nothing of it.
func (s *topSums) most(amount func(topName) int64, most int) []topName {
	all := []topName{}
	for _, n := range s.names {
		if amount(n) > 0 {
			all = append(all, n)
		}
	}
	sort.Slice(all, func(i, j int) bool {
		if a, b := amount(all[i]), amount(all[j]); a != b {
			return a > b
		}
		return all[i].Name.Name < all[j].Name.Name
	})
	return all[:min(len(all), most)]
}

// askingMost are the keys and users with the most requests. Each request counts for one key, so the requests of a
// user may be those of many keys.
func askingMost(keys, users *topSums, most int) []topName {
	requests := func(n topName) int64 { return n.Requests }
	all := append(users.most(requests, most), keys.most(requests, most)...)
	sort.SliceStable(all, func(i, j int) bool { return all[i].Requests > all[j].Requests })
	seen := map[bool]map[string]bool{true: {}, false: {}} // the names of keys, and those of users
	all = slices.DeleteFunc(all, func(n topName) bool {
		name, isKey := cmp.Or(n.Key, n.Name.Name), n.Prefix != ""
		seen[isKey][name] = true
		return seen[!isKey][name]
	})
	return all[:min(len(all), most)]
}

func (c *collector) nearNow() nearSection {
	near := c.near
	if near.Counters == nil {
		near.Counters = []shownUsage{}
	}
	return near
}

func banList(bans []admin.Ban) map[string]any {
	shown := bans[:min(len(bans), mostBans)]
	if shown == nil {
		shown = []admin.Ban{}
	}
	return map[string]any{"bans": shown, "total": len(bans)}
}

// shownChange is a change with what it did.
type shownChange struct {
	admin.Change
	What []string `json:"what"`
	Text string   `json:"text"`
}

func changeList(changes []admin.Change) []shownChange {
	shown := []shownChange{}
	for i := range changes {
		c := changes[i]
		if c.Before == nil {
			c.Before = json.RawMessage("null")
		}
		if c.After == nil {
			c.After = json.RawMessage("null")
		}
		shown = append(shown, shownChange{c, c.What, changeText(&changes[i])})
	}
	return shown
}

// changeText is a change in words.
func changeText(c *admin.Change) string {
	which := "all"
	switch {
	case c.KeyID != nil:
		which = fmt.Sprintf("key %d", *c.KeyID)
	case c.Ref != nil:
		which = *c.Ref
	}
	if c.Kind != "key" || c.KeyID == nil {
		which = c.Kind + " " + which
	}
	return which + ": " + strings.Join(c.What, ", ")
}

// number is a number for people.
func number(n int64) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// span is a duration for people.
func span(d time.Duration) string {
	switch {
	case d >= 48*time.Hour && d%(24*time.Hour) == 0:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	}
	text := d.String()
	text = strings.TrimSuffix(text, "0s")
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	if text == "" || text[len(text)-1] >= '0' && text[len(text)-1] <= '9' || strings.HasSuffix(text, ".") {
		return d.String()
	}
	return text
}
