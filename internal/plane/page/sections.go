package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
			"traffic": c.traffic(), "top": c.top(), "near": c.near, "proxies": c.proxyList(), "limits": c.limitList(), "bans": banList(c.bans),
			"changes": changeList(c.changes),
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

// trafficSection has the minutes in which requests came. That in which Until lies is under way.
type trafficSection struct {
	From    time.Time      `json:"from"`
	Until   time.Time      `json:"until"`
	Minutes []admin.Minute `json:"minutes"`
	Outages []outage       `json:"outages"`
}

func (c *collector) traffic() trafficSection {
	t := trafficSection{trafficFrom(c.now), c.now.UTC(), []admin.Minute{}, c.outages()}
	for _, m := range c.minutes {
		if !m.Time.Before(t.From) {
			t.Minutes = append(t.Minutes, m)
		}
	}
	return t
}

// outage is a time with requests without a decision.
type outage struct {
	From     time.Time `json:"from"`
	Until    time.Time `json:"until"`
	Requests int64     `json:"requests"`
	Text     string    `json:"text"`
}

// outages are those of the last hour, by the history.
func (c *collector) outages() []outage {
	found := []outage{}
	for _, m := range c.minutes {
		if m.Failed == 0 || m.Time.Before(trafficFrom(c.now)) {
			continue
		}
		last := len(found) - 1
		if last < 0 || m.Time.Sub(found[last].Until) > time.Minute {
			found = append(found, outage{From: m.Time})
			last++
		}
		found[last].Until = m.Time.Add(time.Minute)
		found[last].Requests += m.Failed
	}
	became := map[string]bool{}
	for _, p := range c.proxies {
		if p.now != nil {
			became[p.now.without()] = true
		}
	}
	for i := range found {
		o := &found[i]
		how := "had no decision"
		switch {
		case len(became) == 1 && became["open"]:
			how = "passed without a decision"
		case len(became) == 1 && became["closed"]:
			how = plural(int(o.Requests), "was", "were") + " refused without a decision"
		}
		o.Text = fmt.Sprintf("%s %s from %s to %s UTC.", counted(o.Requests, "request", "requests"), how, o.From.UTC().Format("15:04"), o.Until.UTC().Format("15:04"))
	}
	return found
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
	for _, list := range [][]topName{t.Asking, t.Keys, t.Users, t.Addresses} {
		for i := range list {
			n := &list[i]
			n.Text = n.Name.Name
			if n.Prefix != "" {
				n.Text = n.Key + " · " + strings.TrimPrefix(names.shown(n.Prefix), "rule/")
			}
		}
	}
	for i := range t.Rules {
		n := &t.Rules[i]
		n.Text = names.shown(n.Name.Name)
		if rule, isRule := strings.CutPrefix(n.Text, "rule/"); isRule {
			n.Text = "rule " + rule
		} else if !strings.HasPrefix(n.Name.Name, history.ReasonPrefix) {
			n.Text = "limit " + n.Text
		}
	}
}

// mostTop is how many names each list has.
const mostTop = 10

// top is what proxies have counted since a page is open.
func (c *collector) top() topSection {
	t := topSection{Exact: true}
	lists := topLists{}
	for _, p := range c.proxies {
		if p.now == nil || !p.Live {
			continue
		}
		for _, seen := range p.now.Seen {
			from := time.Unix(seen.Since, 0).UTC()
			if t.From == nil || from.Before(*t.From) {
				t.From = &from
			}
			t.Exact = t.Exact && seen.Exact
			lists.add("keys", seen.Top.Keys...)
			lists.add("users", seen.Top.Users...)
			lists.add("addresses", seen.Top.Addresses...)
			lists.add("rules", seen.Top.Rules...)
			t.Requests += seen.Top.All.Requests
			t.Refused += seen.Top.All.Refused
			t.Failed += seen.Top.All.Failed
		}
	}
	t.rank(lists, mostTop)
	t.say(c.rules)
	return t
}

// topLists are keys, users, addresses and rules, each by prefix and name.
type topLists map[string]map[[2]string]topName

// add adds what a proxy, or the history, has counted.
func (l topLists) add(list string, names ...history.Counted) {
	if l[list] == nil {
		l[list] = map[[2]string]topName{}
	}
	for _, n := range names {
		at := [2]string{n.Prefix, n.Name}
		sum := l[list][at]
		sum.Name.Name = strings.TrimSpace(n.Prefix + " " + n.Name)
		if n.Prefix != "" {
			sum.Prefix, sum.Key = n.Prefix, n.Name
		}
		sum.Requests += n.Requests
		sum.Refused += n.Refused
		sum.Failed += n.Failed
		l[list][at] = sum
	}
}

// rank sets the lists of a section, each with so many names at most.
func (t *topSection) rank(lists topLists, most int) {
	t.Asking = lists.asking(most)
	t.Keys, t.Users = lists.most("keys", refusedOf, most), lists.most("users", refusedOf, most)
	t.Addresses, t.Rules = lists.most("addresses", refusedOf, most), lists.most("rules", refusedOf, most)
}

func refusedOf(n topName) int64  { return n.Refused }
func requestsOf(n topName) int64 { return n.Requests }

// most are the names with the most of something, without those that have nothing of it.
func (l topLists) most(list string, amount func(topName) int64, most int) []topName {
	all := []topName{}
	for _, n := range l[list] {
		if amount(n) > 0 {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b topName) int {
		return cmp.Or(cmp.Compare(amount(b), amount(a)), strings.Compare(a.Name.Name, b.Name.Name))
	})
	return all[:min(len(all), most)]
}

// asking are the keys and users with the most requests. Each request counts for one key, so the requests of a user may
// be those of many keys.
func (l topLists) asking(most int) []topName {
	all := append(l.most("users", requestsOf, most), l.most("keys", requestsOf, most)...)
	slices.SortStableFunc(all, func(a, b topName) int { return cmp.Compare(b.Requests, a.Requests) })
	seen := map[bool]map[string]bool{true: {}, false: {}} // the names of keys, and those of users
	all = slices.DeleteFunc(all, func(n topName) bool {
		name, isKey := cmp.Or(n.Key, n.Name.Name), n.Prefix != ""
		seen[isKey][name] = true
		return seen[!isKey][name]
	})
	return all[:min(len(all), most)]
}

func banList(bans []admin.Ban) map[string]any {
	return map[string]any{"bans": append([]admin.Ban{}, bans[:min(len(bans), mostBans)]...), "total": len(bans)}
}

// changesSQL are the changes of the policy in a period, the latest first, at most so many, in words.
const changesSQL = `SELECT seq, at, by, kind, ref, key_id, before, after, what, name, name || ': ' || array_to_string(what, ', ') AS text
FROM rate_limit_changed, LATERAL (SELECT kind || CASE WHEN key_id IS NULL THEN ' ' || coalesce(ref, 'all')
	WHEN kind = 'key' THEN ' #' || key_id ELSE ' key #' || key_id END AS name) AS named
WHERE at >= $1::timestamptz AND at < $2::timestamptz ORDER BY at DESC, seq DESC LIMIT $3::bigint`

func changeList(changes []admin.Row) map[string]any {
	return map[string]any{"changes": append([]admin.Row{}, changes...)}
}
