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
	signature
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

func (a *overrideAction) do(ctx context.Context, db *admin.Database, now time.Time) (*change, error) {
	o, err := a.read(now)
	if err != nil {
		return nil, err
	}
	made, err := db.SetOverride(ctx, o)
	if err != nil {
		return nil, err
	}
	until := clock(o.Until, now)
	who := made[0].Holder
	c := &change{Question: fmt.Sprintf("Give %s other amounts of %s until %s?", who, strings.TrimSuffix(a.Rule+"/"+a.Limit, "/"), until)}
	var ids []int64
	for _, m := range made {
		ids = append(ids, m.ID)
		c.Effect = append(c.Effect, m.Text)
		c.Danger = c.Danger || m.Lowers
	}
	c.Done = fmt.Sprintf("%s has until %s: %s.", who, until, strings.Join(c.Effect, ", "))
	c.Effect = append(c.Effect, "All proxies obey within a second. It ends by itself.")
	c.Undo = &undo{"unoverride", unoverrideAction{IDs: ids}, "Take it back"}
	return c, nil
}

type unoverrideAction struct {
	IDs   []int64 `json:"ids,omitempty"`
	User  string  `json:"user,omitempty"`
	KeyID int64   `json:"key_id,omitempty"`
	Rule  string  `json:"rule,omitempty"`
	Limit string  `json:"limit,omitempty"`
	signature
}

func (a *unoverrideAction) do(ctx context.Context, db *admin.Database, _ time.Time) (*change, error) {
	if len(a.IDs) == 0 && ((a.User == "") == (a.KeyID == 0) || a.Rule == "") {
		return nil, &ratelimit.FieldError{Field: "ids", Want: "given, or user or key_id, and rule"}
	}
	chosen, err := db.FindOverrides(ctx, a.IDs, &admin.NewOverride{User: a.User, KeyID: a.KeyID, Rule: a.Rule, Limit: a.Limit})
	if err == nil {
		err = db.DeleteOverrides(ctx, chosen)
	}
	var texts []string
	for _, o := range chosen {
		texts = append(texts, o.Holder+"’s "+o.Text)
	}
	text := strings.Join(texts, ", ")
	return &change{Question: "Take back " + text + "?", Effect: []string{"All proxies obey within a second."}, Done: "Taken back: " + text + "."}, err
}
