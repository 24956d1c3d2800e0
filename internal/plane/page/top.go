package page

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// list is one of the lists of the section top: names of some kinds that have most of a number.
type list struct {
	ID, Title, Column string
	of                []string
}

var lists = []list{
	{"keys", "Refused keys of limits", "refused", []string{"keys"}},
	{"users", "Refused users", "refused", []string{"users"}},
	{"addresses", "Refused addresses", "refused", []string{"addresses"}},
	{"rules", "Rules and limits that refuse", "refused", []string{"rules"}},
	{"asking", "Most requests", "requests", []string{"users", "keys"}},
}

// topName is a sender or a limit. Prefix and Key are those of a counter.
type topName struct {
	Prefix   string `json:"prefix,omitempty"`
	Key      string `json:"key,omitempty"`
	Name     string `json:"name"`
	Requests int64  `json:"requests"`
	Refused  int64  `json:"refused"`
	Failed   int64  `json:"failed"`
	Text     string `json:"text"` // for people
}

// amount is the number by which a list is in order.
func (n *topName) amount(l *list) int64 {
	if l.Column == "refused" {
		return n.Refused
	}
	return n.Requests
}

// say sets the text of a name of a list.
func (n *topName) say(l *list, names ruleNames) {
	switch n.Text = n.Name; {
	case l.ID != "rules" && n.Prefix != "":
		n.Text = n.Key + " · " + strings.TrimPrefix(names.shown(n.Prefix), "rule/")
	case l.ID == "rules" && strings.HasPrefix(n.Text, "rule/"):
		n.Text = "rule " + strings.TrimPrefix(names.shown(n.Text), "rule/")
	case l.ID == "rules" && strings.HasPrefix(n.Text, reasonPrefix):
		n.Text = names.shown(n.Text)
	case l.ID == "rules":
		n.Text = "limit " + n.Text
	}
}

// reasonPrefix begins the name of a rule in a list for requests that neither a rule nor a limit refused, such as
// reason/unknown_key.
const reasonPrefix = "reason/"

// tally adds up what the history has counted, by kinds of names. The kind all has all requests, without a name.
type tally struct {
	from *time.Time
	sums map[nameOf]topName
}

// nameOf is a kind, a prefix and a name.
type nameOf [3]string

func (t *tally) add(kind string, n *admin.CountedName) {
	at := nameOf{kind, n.Prefix, n.Name}
	sum := t.sums[at]
	sum.Name = strings.TrimSpace(n.Prefix + " " + n.Name)
	if n.Prefix != "" {
		sum.Prefix, sum.Key = n.Prefix, n.Name
	}
	sum.Requests, sum.Refused, sum.Failed = sum.Requests+n.Requests, sum.Refused+n.Refused, sum.Failed+n.Failed
	t.sums[at] = sum
}

func (t *tally) all() topName { return t.sums[nameOf{"all"}] }

// section is the section top, with so many names in each list at most.
func (t *tally) section(names ruleNames, most int) map[string]any {
	s := map[string]any{
		"from": t.from, "note": nil,
		"requests": t.all().Requests, "refused": t.all().Refused, "failed": t.all().Failed,
	}
	for i := range lists {
		s[lists[i].ID] = t.most(&lists[i], names, most)
	}
	return s
}

// most are the names of a list. Each request counts for one key, so the requests of a user may be those of many keys:
// of a key and a user of the same name, the list has that with more.
func (t *tally) most(l *list, names ruleNames, most int) []topName {
	all := []topName{}
	for at, n := range t.sums {
		if slices.Contains(l.of, at[0]) && n.amount(l) > 0 {
			n.say(l, names)
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b topName) int {
		byAmount, byKind := cmp.Compare(b.amount(l), a.amount(l)), cmp.Compare(len(a.Prefix), len(b.Prefix))
		return cmp.Or(byAmount, byKind, strings.Compare(a.Name, b.Name))
	})
	if len(l.of) > 1 {
		kinds := map[string]bool{} // the first of each name is a key
		all = slices.DeleteFunc(all, func(n topName) bool {
			name, isKey := cmp.Or(n.Key, n.Name), n.Prefix != ""
			first, known := kinds[name]
			if !known {
				kinds[name] = isKey
			}
			return known && first != isKey
		})
	}
	return all[:min(len(all), most)]
}

// mostTop is how many names each list has.
const mostTop = 10

// lastHour is the period of the lists that a page shows first.
const lastHour = "1h"

// readTop reads the lists of the last hour.
func (c *collector) readTop(ctx context.Context, db *admin.Database) error {
	section, err := topSince(ctx, db, &periodFields{Since: lastHour}, c.ruleNames())
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.top = section
	}
	return err
}

// top answers with the section top for a period. The history names rules that the policy may have no more.
func top(ctx context.Context, s *Server, f *periodFields) (section any, err error) {
	s.collector.refresh(ctx, false) // it knows the names of the rules
	err = s.ask(ctx, ofHistory, func(ctx context.Context, db *admin.Database) (err error) {
		section, err = topSince(ctx, db, f, s.collector.ruleNames())
		return err
	})
	return section, err
}

// topSince is the section top for a period, from the history.
func topSince(ctx context.Context, db *admin.Database, f *periodFields, names ruleNames) (map[string]any, error) {
	p, err := f.period(ctx, db, lastHour)
	if err != nil {
		return nil, err
	}
	most, err := f.count(mostTop, 100)
	if err != nil {
		return nil, err
	}
	var note any
	if full := p.Full(); full.From.Add(2 * time.Minute).Before(p.Until) {
		p = full
	} else { // there would be next to nothing
		p.From = p.From.Truncate(time.Minute)
		note = "The counts are those of full minutes, so these begin before the time that was chosen."
	}
	found, err := db.TopNames(ctx, p, most)
	if err != nil {
		return nil, err
	}
	t, hasAllowed := tally{from: &p.From, sums: map[nameOf]topName{}}, false
	for i := range found {
		n := &found[i]
		switch n.List {
		case "log":
			hasAllowed = n.Requests > n.Refused+n.Failed
			continue
		case "reasons":
			n.List, n.Name = "rules", reasonPrefix+n.Name
		case "limits":
			t.add("all", &admin.CountedName{Requests: n.Requests, Refused: n.Refused, Failed: n.Failed})
			if n.List = "rules"; n.Name == "" { // requests that no limit has counted
				continue
			}
		}
		t.add(n.List, n)
	}
	if !hasAllowed && t.all().Requests > t.all().Refused {
		note = "The audit log has refusals only (audit denied), so the requests of keys, users and addresses are " +
			"those that were refused."
	}
	s := t.section(names, most)
	s["note"] = note
	return s, nil
}
