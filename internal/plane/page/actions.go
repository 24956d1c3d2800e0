package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// longestPause is the longest pause that the page makes.
const longestPause = 24 * time.Hour

type pauseAction struct {
	For    string `json:"for"`
	Reason string `json:"reason"`
}

func (a *pauseAction) lasts() (time.Duration, error) {
	d, err := ratelimit.ParseWindow(cmp.Or(a.For, "1h"))
	if err != nil || d < time.Second || d > longestPause {
		return 0, &ratelimit.FieldError{Field: "for", Value: a.For, Want: "a duration from 1s to 24h, such as 20m"}
	}
	return d, nil
}

func (a *pauseAction) plan(ctx context.Context, db *admin.Database, now time.Time) (*planned, error) {
	d, err := a.lasts()
	if err != nil {
		return nil, err
	}
	live, err := db.LiveProxies(ctx)
	if err != nil {
		return nil, err
	}
	return &planned{
		Question: fmt.Sprintf("Pause all limits of this database until %s (%s)?", clock(now.Add(d), now), span(d)), Danger: true,
		Effect: []string{fmt.Sprintf("%s all requests pass within a second, uncounted.", plural(len(live), "1 proxy lets", fmt.Sprintf("%d proxies let", len(live)))), "Bans and block rules hold.",
			"The pause ends by itself."},
	}, nil
}

func (a *pauseAction) do(ctx context.Context, db *admin.Database, now time.Time) (*done, error) {
	d, err := a.lasts()
	if err != nil {
		return nil, err
	}
	p, err := db.Pause(ctx, d, a.Reason)
	if err != nil {
		return nil, err
	}
	return &done{"All limits are paused until " + clock(p.Until, now) + ".", &undo{"resume", struct{}{}, "End the pause"}}, nil
}

type resumeAction struct{}

var errNotPaused = &failure{404, "", "limits are not paused"}

func (a *resumeAction) plan(ctx context.Context, db *admin.Database, now time.Time) (*planned, error) {
	p, err := db.Paused(ctx)
	if err == nil && p == nil {
		err = errNotPaused
	}
	if err != nil {
		return nil, err
	}
	return &planned{Question: fmt.Sprintf("End the pause of %s now, before %s?", p.PausedBy, clock(p.Until, now)), Effect: []string{"All limits apply again within a second."}}, nil
}

func (a *resumeAction) do(ctx context.Context, db *admin.Database, now time.Time) (*done, error) {
	p, err := db.Paused(ctx)
	if err == nil && p == nil {
		err = errNotPaused
	}
	if err != nil {
		return nil, err
	}
	if err := db.Resume(ctx); err != nil {
		return nil, err
	}
	d := &done{Done: "The limits apply again."}
	if left := p.Until.Sub(now).Truncate(time.Second); left >= time.Second {
		again := pauseAction{For: fmt.Sprintf("%ds", int(min(left, longestPause).Seconds()))}
		if p.Reason != nil {
			again.Reason = *p.Reason
		}
		d.Undo = &undo{"pause", again, "Pause again until " + clock(p.Until, now)}
	}
	return d, nil
}

// banned is what a ban is for. One field is set.
type banned struct {
	Network string `json:"network,omitempty"`
	User    string `json:"user,omitempty"`
	KeyID   int64  `json:"key_id,omitempty"`
}

// check returns the kind of the ban, and which it is for, as admin.Ban has them.
func (b *banned) check() (kind, which string, network netip.Prefix, err error) {
	given := 0
	if b.Network != "" {
		given++
		if network, err = admin.ParseNetwork("network", b.Network); err != nil {
			return "", "", network, err
		}
		kind, which = "network", network.String()
	}
	if b.User != "" {
		given++
		kind, which = "user", b.User
	}
	if b.KeyID != 0 {
		given++
		kind, which = "key", fmt.Sprint(b.KeyID)
	}
	if given != 1 {
		err = &ratelimit.FieldError{Field: "network", Value: b.Network, Want: "given, or user or key_id, and only one of them"}
	}
	return kind, which, network, err
}

// current is the ban that is in force; nil is none.
func (b *banned) current(ctx context.Context, db *admin.Database) (*admin.Ban, error) {
	kind, which, _, err := b.check()
	if err != nil {
		return nil, err
	}
	all, err := db.Bans(ctx)
	for i := range all {
		if all[i].Kind == kind && all[i].Banned == which {
			return &all[i], err
		}
	}
	return nil, err
}

// again is the action that makes a ban as it was.
func (b *banned) again(before *admin.Ban, now time.Time) *undo {
	body := banAction{banned: *b, For: "never"}
	if before.Until != nil {
		body.For = before.Until.UTC().Format(time.RFC3339Nano)
	}
	if before.Reason != nil {
		body.Reason = *before.Reason
	}
	label := "Ban again"
	if before.Until != nil {
		label += " until " + clock(*before.Until, now)
	}
	return &undo{"ban", body, label}
}

type banAction struct {
	banned
	For    string `json:"for"`
	Reason string `json:"reason"`
}

func (a *banAction) plan(ctx context.Context, db *admin.Database, now time.Time) (*planned, error) {
	kind, which, network, err := a.check()
	if err != nil {
		return nil, err
	}
	until, err := admin.ParseUntil("for", cmp.Or(a.For, "1h"), now)
	if err != nil {
		return nil, err
	}
	before, err := a.current(ctx, db)
	if err != nil {
		return nil, err
	}
	p := &planned{Question: fmt.Sprintf("Ban the %s %s %s?", kind, which, untilText(until, now)), Effect: []string{"All proxies with a policy refuse its requests with status 403 within a second."}, Danger: true}
	if before != nil {
		p.Effect = append(p.Effect, "It replaces a ban by "+before.BannedBy+".")
	}
	if kind == "network" && admin.IsWide(network) {
		p.Effect = append(p.Effect, "This network is larger than any that one organisation has: it shuts out others, and perhaps everybody.")
	}
	return p, nil
}

// untilText is the end of something in words. The zero time is never.
func untilText(until, now time.Time) string {
	if until.IsZero() {
		return "for ever"
	}
	return "until " + clock(until, now)
}

func (a *banAction) do(ctx context.Context, db *admin.Database, now time.Time) (*done, error) {
	kind, which, network, err := a.check()
	if err != nil {
		return nil, err
	}
	until, err := admin.ParseUntil("for", cmp.Or(a.For, "1h"), now)
	if err != nil {
		return nil, err
	}
	before, err := a.current(ctx, db)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "network":
		_, err = db.BanNetwork(ctx, network, until, a.Reason)
	case "user":
		_, err = db.BanUser(ctx, a.User, until, a.Reason)
	default:
		_, err = db.BanKey(ctx, a.KeyID, until, a.Reason)
	}
	if err != nil {
		return nil, err
	}
	d := &done{fmt.Sprintf("The %s %s is banned %s.", kind, which, untilText(until, now)), &undo{"unban", a.banned, "Lift the ban"}}
	if before != nil {
		d.Undo = a.again(before, now)
	}
	return d, nil
}

type unbanAction struct{ banned }

func (a *unbanAction) plan(ctx context.Context, db *admin.Database, now time.Time) (*planned, error) {
	kind, which, _, err := a.check()
	if err != nil {
		return nil, err
	}
	before, err := a.current(ctx, db)
	if err != nil {
		return nil, err
	}
	if before == nil {
		return nil, &failure{404, kind, fmt.Sprintf("%s %s: not banned", kind, which)}
	}
	p := &planned{Question: fmt.Sprintf("Lift the ban of the %s %s?", kind, which), Effect: []string{"Its requests count as before within a second."}}
	if before.Reason != nil {
		p.Effect = append(p.Effect, "It was banned by "+before.BannedBy+": "+*before.Reason)
	}
	return p, nil
}

func (a *unbanAction) do(ctx context.Context, db *admin.Database, now time.Time) (*done, error) {
	kind, which, network, err := a.check()
	if err != nil {
		return nil, err
	}
	before, err := a.current(ctx, db)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "network":
		err = db.UnbanNetwork(ctx, network)
	case "user":
		err = db.UnbanUser(ctx, a.User)
	default:
		err = db.UnbanKey(ctx, a.KeyID)
	}
	if err != nil {
		return nil, err
	}
	d := &done{Done: fmt.Sprintf("The ban of the %s %s is lifted.", kind, which)}
	if before != nil {
		d.Undo = a.again(before, now)
	}
	return d, nil
}

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
	was := "unlimited"
	if m.Was != nil {
		was = number(*m.Was)
	}
	return fmt.Sprintf("%s/%s: %s → %s", m.Rule, m.Limit, was, number(m.Events))
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

func (a *unoverrideAction) plan(context.Context, *admin.Database, time.Time) (*planned, error) {
	if len(a.IDs) == 0 && ((a.User == "") == (a.KeyID == 0) || a.Rule == "") {
		return nil, &ratelimit.FieldError{Field: "ids", Want: "given, or user or key_id, and rule"}
	}
	return &planned{Question: "Take the override back?", Effect: []string{"The amounts are those of before within a second."}}, nil
}

func (a *unoverrideAction) do(ctx context.Context, db *admin.Database, _ time.Time) (*done, error) {
	n, err := db.DeleteOverrides(ctx, a.IDs, &admin.NewOverride{User: a.User, KeyID: a.KeyID, Rule: a.Rule, Limit: a.Limit})
	if err != nil {
		return nil, err
	}
	return &done{Done: plural(int(n), "The override is", fmt.Sprintf("%d overrides are", n)) + " taken back."}, nil
}

type resetAction struct {
	Prefix string `json:"prefix"`
	Key    string `json:"key"`
}

func (a *resetAction) plan(ctx context.Context, db *admin.Database, _ time.Time) (*planned, error) {
	found, err := db.Counters(ctx, a.Prefix, a.Key)
	if err != nil && !errors.Is(err, admin.ErrNotFound) || len(found) == 0 {
		return nil, err
	}
	return &planned{Question: fmt.Sprintf("Give %s its full quota of %s back?", found[0].Key, found[0].Prefix), Effect: []string{"The counter is deleted. There is no way back."}, Danger: true}, nil
}

func (a *resetAction) do(ctx context.Context, db *admin.Database, _ time.Time) (*done, error) {
	if err := db.Reset(ctx, a.Prefix, a.Key); err != nil {
		return nil, err
	}
	return &done{Done: "The full quota is back. A proxy that has just refused the key may refuse it for a second more."}, nil
}
