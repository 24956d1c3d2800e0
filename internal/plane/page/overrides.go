package page

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

type overrideAction struct {
	User    string   `json:"user"`
	KeyID   int64    `json:"key_id"`
	Rule    string   `json:"rule"`
	Limit   string   `json:"limit"`
	Percent *float64 `json:"percent"`
	Events  *int64   `json:"events"`
	Until   string   `json:"until"`
	Reason  string   `json:"reason"`
}

// read reads the fields.
func (a *overrideAction) read(now time.Time) (*admin.NewOverride, error) {
	o := &admin.NewOverride{User: a.User, KeyID: a.KeyID, Rule: a.Rule, Limit: a.Limit, Events: a.Events, Reason: a.Reason}
	var err error
	switch {
	case (a.User == "") == (a.KeyID == 0):
		return nil, &ratelimit.FieldError{Field: "user", Value: a.User, Want: "given, or key_id, and only one of them"}
	case a.Rule == "":
		return nil, &ratelimit.FieldError{Field: "rule", Want: "the name of a rule"}
	case (a.Percent == nil) == (a.Events == nil):
		return nil, &ratelimit.FieldError{Field: "percent", Want: "given, or events, and only one of them"}
	case a.Percent != nil && (*a.Percent < -100 || *a.Percent > 100000 || *a.Percent == 0):
		return nil, &ratelimit.FieldError{Field: "percent", Value: fmt.Sprint(*a.Percent), Want: "from -100 to 100000, and not 0"}
	case a.Events != nil && (*a.Events < 0 || *a.Events > ratelimit.MaxEvents):
		return nil, &ratelimit.FieldError{Field: "events", Value: fmt.Sprint(*a.Events), Want: "from 0 to 9007199254740992"}
	}
	if a.Percent != nil {
		o.Percent = *a.Percent
	}
	if a.Until == "midnight" {
		o.Until = now.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	} else if o.Until, err = admin.ParseUntil("until", cmp.Or(a.Until, "1h"), now); err == nil && o.Until.IsZero() {
		err = &ratelimit.FieldError{Field: "until", Value: a.Until, Want: "a duration such as 1h, midnight, or a time: the page makes no override for ever"}
	}
	return o, err
}

func (a *overrideAction) sender() string {
	if a.User != "" {
		return a.User
	}
	return fmt.Sprintf("key %d", a.KeyID)
}

func (a *overrideAction) plan(ctx context.Context, db *admin.Database, now time.Time) (*planned, error) {
	o, err := a.read(now)
	if err != nil {
		return nil, err
	}
	would, err := db.Overrides(ctx, o)
	if err != nil {
		return nil, err
	}
	p := &planned{Question: fmt.Sprintf("Give %s other amounts of %s until %s?", a.sender(), cmp.Or(strings.Trim(a.Rule+"/"+a.Limit, "/"), a.Rule), clock(o.Until, now)), Effect: []string{}}
	for _, m := range would {
		p.Effect = append(p.Effect, overrideText(&m))
		p.Danger = p.Danger || m.Was == nil || m.Events < *m.Was
	}
	p.Effect = append(p.Effect, "All proxies obey within a second. It ends by itself.")
	return p, nil
}

func overrideText(m *admin.MadeOverride) string {
	return fmt.Sprintf("%s/%s: %s → %s", m.Rule, m.Limit, amountText(m.Was), number(m.Events))
}

// amountText is an amount; nil is unlimited.
func amountText(n *int64) string {
	if n == nil {
		return "unlimited"
	}
	return number(*n)
}

func (a *overrideAction) do(ctx context.Context, db *admin.Database, now time.Time) (*done, error) {
	o, err := a.read(now)
	if err != nil {
		return nil, err
	}
	made, err := db.SetOverride(ctx, o)
	if err != nil {
		return nil, err
	}
	var ids []int64
	var texts []string
	for i := range made {
		ids = append(ids, made[i].ID)
		texts = append(texts, overrideText(&made[i]))
	}
	return &done{fmt.Sprintf("%s has until %s: %s.", a.sender(), clock(o.Until, now), strings.Join(texts, ", ")), &undo{"unoverride", unoverrideAction{IDs: ids}, "Take it back"}}, nil
}

type unoverrideAction struct {
	IDs   []int64 `json:"ids,omitempty"`
	User  string  `json:"user,omitempty"`
	KeyID int64   `json:"key_id,omitempty"`
	Rule  string  `json:"rule,omitempty"`
	Limit string  `json:"limit,omitempty"`
}

// chosen are the overrides, and what becomes of the amounts without them.
func (a *unoverrideAction) chosen(ctx context.Context, db *admin.Database) (chosen []admin.ActiveOverride, text string, err error) {
	if len(a.IDs) == 0 && ((a.User == "") == (a.KeyID == 0) || a.Rule == "") {
		return nil, "", &ratelimit.FieldError{Field: "ids", Want: "given, or user or key_id, and rule"}
	}
	chosen, err = db.FindOverrides(ctx, a.IDs, &admin.NewOverride{User: a.User, KeyID: a.KeyID, Rule: a.Rule, Limit: a.Limit})
	var texts []string
	for _, o := range chosen {
		texts = append(texts, fmt.Sprintf("%s’s %s/%s: %s → %s", o.Holder, o.Rule, o.Limit, amountText(o.Events), amountText(o.Then)))
	}
	return chosen, strings.Join(texts, ", "), err
}

func (a *unoverrideAction) plan(ctx context.Context, db *admin.Database, _ time.Time) (*planned, error) {
	_, text, err := a.chosen(ctx, db)
	if err != nil {
		return nil, err
	}
	return &planned{Question: "Take back " + text + "?", Effect: []string{"All proxies obey within a second."}}, nil
}

func (a *unoverrideAction) do(ctx context.Context, db *admin.Database, _ time.Time) (*done, error) {
	chosen, text, err := a.chosen(ctx, db)
	if err != nil {
		return nil, err
	}
	if err := db.DeleteOverrides(ctx, chosen); err != nil {
		return nil, err
	}
	return &done{Done: "Taken back: " + text + "."}, nil
}
