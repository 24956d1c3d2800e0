package page

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func listBans(ctx context.Context, db *admin.Database, _ *struct{}) (any, error) {
	bans, err := db.Bans(ctx)
	return banList(bans), err
}

// periodFields are a time that is asked about, and how many rows are wanted.
type periodFields struct {
	Since string `json:"since"`
	Until string `json:"until"`
	N     string `json:"n"`
}

func (f *periodFields) count(unset, most int) (int, error) {
	n, err := strconv.Atoi(cmp.Or(f.N, "0"))
	if err != nil || n < 0 || n > most {
		return 0, &ratelimit.FieldError{Field: "n", Value: f.N, Want: fmt.Sprintf("a number from 1 to %d", most)}
	}
	return cmp.Or(n, unset), nil
}

func (f *periodFields) period(ctx context.Context, db *admin.Database, unset string) (admin.Period, error) {
	now, err := db.Now(ctx)
	if err != nil {
		return admin.Period{}, err
	}
	return admin.ParsePeriod(cmp.Or(f.Since, unset), f.Until, now)
}

func listChanges(ctx context.Context, db *admin.Database, f *periodFields) (any, error) {
	p, err := f.period(ctx, db, "24h")
	if err != nil {
		return nil, err
	}
	most, err := f.count(100, 1000)
	if err != nil {
		return nil, err
	}
	changes, err := db.Ask(ctx, changesSQL, p.From, p.Until, int64(most))
	return changeList(changes), err
}

// top answers with the section top for a period. The history names rules that the policy may have no more.
func top(ctx context.Context, s *Server, f *periodFields) (any, error) {
	var found topSection
	err := s.ask(ctx, func(ctx context.Context, c *connections) error {
		db, err := c.at(ctx, ofHistory)
		if err == nil {
			found, err = topSince(ctx, db, f)
		}
		if err != nil {
			return err
		}
		if db, err = c.at(ctx, ofPolicy); err != nil {
			return err
		}
		rules, err := db.RuleStates(ctx)
		found.say(namesOf(rules))
		return err
	})
	return found, err
}

// topSince is the section top for a period, from the history.
func topSince(ctx context.Context, db *admin.Database, f *periodFields) (topSection, error) {
	p, err := f.period(ctx, db, "1h")
	if err != nil {
		return topSection{}, err
	}
	most, err := f.count(mostTop, 100)
	if err != nil {
		return topSection{}, err
	}
	var remark *string
	if full := p.Full(); full.From.Add(2 * time.Minute).Before(p.Until) {
		p = full
	} else { // there would be next to nothing
		p.From = p.From.Truncate(time.Minute)
		text := "The counts are those of full minutes, so these begin before the time that was chosen."
		remark = &text
	}
	found, err := db.TopNames(ctx, p, most)
	if err != nil {
		return topSection{}, err
	}
	t := topSection{Remark: remark, From: &p.From, Exact: true}
	lists, recorded := topLists{}, admin.CountedName{}
	for _, n := range found {
		c := history.Counted{Prefix: n.Prefix, Name: n.Name, Requests: n.Requests, Refused: n.Refused, Failed: n.Failed}
		switch n.List {
		case "log":
			recorded = n
			continue
		case "reasons":
			n.List, c.Name = "rules", history.ReasonPrefix+n.Name
		case "limits":
			t.Requests, t.Refused, t.Failed = t.Requests+n.Requests, t.Refused+n.Refused, t.Failed+n.Failed
			if n.List = "rules"; n.Name == "" { // requests that no limit has counted
				continue
			}
		}
		lists.add(n.List, c)
	}
	t.rank(lists, most)
	if recorded.Requests <= recorded.Refused+recorded.Failed && t.Requests > t.Refused {
		text := "The audit log has refusals only (audit denied), so the requests of keys, users and addresses are those that were refused."
		t.Remark = &text
	}
	return t, nil
}

func usageOfUser(ctx context.Context, db *admin.Database, f *struct {
	User  string `json:"user"`
	Month string `json:"month"`
}) (any, error) {
	if f.User == "" {
		return nil, &ratelimit.FieldError{Field: "user", Want: "the name of a user"}
	}
	p, err := admin.ParseMonth("month", f.Month, time.Now())
	if err != nil {
		return nil, err
	}
	return db.UsageOf(ctx, f.User, p)
}

// mostNames is how many names are suggested.
const mostNames = 20

func listNames(ctx context.Context, db *admin.Database, f *struct {
	Kind   string `json:"kind"`
	Begins string `json:"begins"`
}) (any, error) {
	var names []string
	var err error
	switch f.Kind {
	case "user":
		names, err = db.UserNames(ctx, f.Begins, mostNames)
	case "rule":
		names, err = db.RuleNames(ctx)
	case "tier":
		names, err = db.TierNames(ctx)
	default:
		return nil, &ratelimit.FieldError{Field: "kind", Value: f.Kind, Want: "user, rule or tier"}
	}
	found := []string{}
	for _, name := range names {
		if strings.HasPrefix(name, f.Begins) && len(found) < mostNames {
			found = append(found, name)
		}
	}
	return map[string]any{"names": found}, err
}

func counters(ctx context.Context, db *admin.Database, f *struct {
	Prefix string `json:"prefix"`
	Key    string `json:"key"`
}) (any, error) {
	found, err := db.Counters(ctx, f.Prefix, f.Key)
	return map[string]any{"counters": found}, err
}
