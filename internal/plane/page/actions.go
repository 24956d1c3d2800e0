package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
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

// banTarget is what a banned names, as admin.Ban has it.
type banTarget struct {
	kind, which string
	network     netip.Prefix
	ban         *admin.Ban // that is in force; nil is none
}

func (b *banned) target(ctx context.Context, db *admin.Database) (*banTarget, error) {
	t := &banTarget{}
	given := 0
	if b.Network != "" {
		given++
		var err error
		if t.network, err = admin.ParseNetwork("network", b.Network); err != nil {
			return nil, err
		}
		t.kind, t.which = "network", t.network.String()
	}
	if b.User != "" {
		given++
		t.kind, t.which = "user", b.User
	}
	if b.KeyID != 0 {
		given++
		t.kind, t.which = "key", fmt.Sprint(b.KeyID)
	}
	if given != 1 {
		return nil, &ratelimit.FieldError{Field: "network", Value: b.Network, Want: "given, or user or key_id, and only one of them"}
	}
	all, err := db.Bans(ctx)
	for i := range all {
		if all[i].Kind == t.kind && all[i].Banned == t.which {
			t.ban = &all[i]
		}
	}
	return t, err
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

// read is what the ban is for, and its end.
func (a *banAction) read(ctx context.Context, db *admin.Database, now time.Time) (*banTarget, time.Time, error) {
	until, err := admin.ParseUntil("for", cmp.Or(a.For, "1h"), now)
	if err != nil {
		return nil, until, err
	}
	t, err := a.target(ctx, db)
	return t, until, err
}

func (a *banAction) plan(ctx context.Context, db *admin.Database, now time.Time) (*planned, error) {
	t, until, err := a.read(ctx, db, now)
	if err != nil {
		return nil, err
	}
	p := &planned{Question: fmt.Sprintf("Ban the %s %s %s?", t.kind, t.which, untilText(until, now)), Effect: []string{"All proxies with a policy refuse its requests with status 403 within a second."}, Danger: true}
	switch t.kind {
	case "user":
		if _, err := db.User(ctx, a.User); errors.Is(err, admin.ErrNotFound) {
			p.Effect = append(p.Effect, "The policy has no user of this name.")
		}
	case "key":
		user, err := db.UserOfKey(ctx, a.KeyID)
		if err != nil {
			return nil, err
		}
		p.Effect = append(p.Effect, "It is a key of "+user+".")
	}
	if t.ban != nil {
		p.Effect = append(p.Effect, "It replaces a ban by "+t.ban.BannedBy+".")
	}
	if t.kind == "network" && admin.IsWide(t.network) {
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
	t, until, err := a.read(ctx, db, now)
	if err != nil {
		return nil, err
	}
	switch t.kind {
	case "network":
		_, err = db.BanNetwork(ctx, t.network, until, a.Reason)
	case "user":
		_, err = db.BanUser(ctx, a.User, until, a.Reason)
	default:
		_, err = db.BanKey(ctx, a.KeyID, until, a.Reason)
	}
	if err != nil {
		return nil, err
	}
	d := &done{fmt.Sprintf("The %s %s is banned %s.", t.kind, t.which, untilText(until, now)), &undo{"unban", a.banned, "Lift the ban"}}
	if t.ban != nil {
		d.Undo = a.again(t.ban, now)
	}
	return d, nil
}

type unbanAction struct{ banned }

func (a *unbanAction) plan(ctx context.Context, db *admin.Database, now time.Time) (*planned, error) {
	t, err := a.target(ctx, db)
	if err != nil {
		return nil, err
	}
	if t.ban == nil {
		return nil, &failure{404, t.kind, fmt.Sprintf("%s %s: not banned", t.kind, t.which)}
	}
	p := &planned{Question: fmt.Sprintf("Lift the ban of the %s %s?", t.kind, t.which), Effect: []string{"Its requests count as before within a second."}}
	if t.ban.Reason != nil {
		p.Effect = append(p.Effect, "It was banned by "+t.ban.BannedBy+": "+*t.ban.Reason)
	}
	return p, nil
}

func (a *unbanAction) do(ctx context.Context, db *admin.Database, now time.Time) (*done, error) {
	t, err := a.target(ctx, db)
	if err != nil {
		return nil, err
	}
	switch t.kind {
	case "network":
		err = db.UnbanNetwork(ctx, t.network)
	case "user":
		err = db.UnbanUser(ctx, a.User)
	default:
		err = db.UnbanKey(ctx, a.KeyID)
	}
	if err != nil {
		return nil, err
	}
	d := &done{Done: fmt.Sprintf("The ban of the %s %s is lifted.", t.kind, t.which)}
	if t.ban != nil {
		d.Undo = a.again(t.ban, now)
	}
	return d, nil
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
