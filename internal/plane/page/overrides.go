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
	c := &change{Text: fmt.Sprintf("Give %s other amounts of %s until %s", made[0].Holder, strings.TrimSuffix(a.Rule+"/"+a.Limit, "/"), clock(o.Until, now))}
	for _, m := range made {
		c.Effect = append(c.Effect, m.Text)
		c.Danger = c.Danger || m.Lowers
	}
	c.Text += ": " + strings.Join(c.Effect, ", ")
	c.Effect = []string{obeyed, "It ends by itself."}
	return c, nil
}

type unoverrideAction struct {
	User  string `json:"user,omitempty"`
	KeyID int64  `json:"key_id,omitempty"`
	Rule  string `json:"rule,omitempty"`
	Limit string `json:"limit,omitempty"`
	signature
}

func (a *unoverrideAction) do(ctx context.Context, db *admin.Database, _ time.Time) (*change, error) {
	if (a.User == "") == (a.KeyID == 0) || a.Rule == "" {
		return nil, &ratelimit.FieldError{Field: "user", Value: a.User, Want: "given, or key_id, and only one of them, and rule"}
	}
	gone, err := db.DeleteOverrides(ctx, &admin.NewOverride{User: a.User, KeyID: a.KeyID, Rule: a.Rule, Limit: a.Limit})
	var texts []string
	for _, o := range gone {
		texts = append(texts, o.Holder+"’s "+o.Text)
	}
	return &change{Text: "Take back " + strings.Join(texts, ", "), Effect: []string{obeyed}}, err
}
