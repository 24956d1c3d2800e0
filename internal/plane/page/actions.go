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
	signature
}

func (a *pauseAction) do(ctx context.Context, db *admin.Database, now time.Time) (*change, error) {
	lasts, err := ratelimit.ParseWindow(cmp.Or(a.For, "1h"))
	if err != nil || lasts < time.Second || lasts > longestPause {
		return nil, &ratelimit.FieldError{Field: "for", Value: a.For, Want: "a duration from 1s to 24h, such as 20m"}
	}
	live, err := db.LiveProxies(ctx)
	if err != nil {
		return nil, err
	}
	before, err := db.Paused(ctx)
	if err != nil {
		return nil, err
	}
	p, err := db.Pause(ctx, lasts, a.Reason)
	if err != nil {
		return nil, err
	}
	until := clock(p.Until, now)
	c := &change{
		Question: fmt.Sprintf("Pause all limits of this database until %s (%s)?", until, span(lasts)), Danger: true,
		Effect: []string{fmt.Sprintf("%s all requests pass within a second, uncounted.", plural(len(live), "1 proxy lets", fmt.Sprintf("%d proxies let", len(live)))), "Bans and block rules hold.",
			"The pause ends by itself."},
		Done: "All limits are paused until " + until + ".", Undo: &undo{"resume", struct{}{}, "End the pause"},
	}
	if before != nil {
		c.Effect = append(c.Effect, "It replaces the pause of "+before.PausedBy+" until "+clock(before.Until, now)+".")
		if again := pauseAgain(before, now); again != nil {
			c.Undo = again
		}
	}
	return c, nil
}

// pauseAgain is the action that makes a pause as it was; nil if too little of it is left.
func pauseAgain(before *admin.Pause, now time.Time) *undo {
	left := min(before.Until.Sub(now), longestPause).Truncate(time.Second)
	if left < time.Second {
		return nil
	}
	body := pauseAction{For: fmt.Sprintf("%ds", int(left.Seconds()))}
	if before.Reason != nil {
		body.Reason = *before.Reason
	}
	return &undo{"pause", body, "Pause again for " + span(left)}
}

type resumeAction struct{ signature }

func (a *resumeAction) do(ctx context.Context, db *admin.Database, now time.Time) (*change, error) {
	p, err := db.Paused(ctx)
	if err == nil && p == nil {
		err = &failure{404, "", "limits are not paused"}
	}
	if err == nil {
		err = db.Resume(ctx)
	}
	if err != nil {
		return nil, err
	}
	c := &change{Question: fmt.Sprintf("End the pause of %s now, before %s?", p.PausedBy, clock(p.Until, now)), Effect: []string{"All limits apply again within a second."}, Done: "The limits apply again.", Undo: pauseAgain(p, now)}
	return c, nil
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
	ban         *admin.Ban // that is in force; nil is none
}

func (t *banTarget) String() string { return "the " + t.kind + " " + t.which }

func (b *banned) target(ctx context.Context, db *admin.Database) (*banTarget, error) {
	t, given := &banTarget{}, 0
	is := func(kind, which string) { t.kind, t.which, given = kind, which, given+1 }
	if b.Network != "" {
		network, err := admin.ParseNetwork("network", b.Network)
		if err != nil {
			return nil, err
		}
		is("network", network.String())
	}
	if b.User != "" {
		is("user", b.User)
	}
	if b.KeyID != 0 {
		is("key", fmt.Sprint(b.KeyID))
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
	label := "Ban again"
	if before.Until != nil {
		body.For = before.Until.UTC().Format(time.RFC3339Nano)
		label += " until " + clock(*before.Until, now)
	}
	if before.Reason != nil {
		body.Reason = *before.Reason
	}
	return &undo{"ban", body, label}
}

type banAction struct {
	banned
	For    string `json:"for"`
	Reason string `json:"reason"`
	signature
}

func (a *banAction) do(ctx context.Context, db *admin.Database, now time.Time) (*change, error) {
	until, err := admin.ParseUntil("for", cmp.Or(a.For, "1h"), now)
	if err != nil {
		return nil, err
	}
	t, err := a.target(ctx, db)
	if err != nil {
		return nil, err
	}
	ends := "for ever"
	if !until.IsZero() {
		ends = "until " + clock(until, now)
	}
	c := &change{
		Question: fmt.Sprintf("Ban %s %s?", t, ends), Effect: []string{"All proxies with a policy refuse its requests with status 403 within a second."}, Danger: true,
		Done: fmt.Sprintf("The %s %s is banned %s.", t.kind, t.which, ends), Undo: &undo{"unban", a.banned, "Lift the ban"},
	}
	switch t.kind {
	case "network":
		if admin.IsWide(netip.MustParsePrefix(t.which)) {
			c.Effect = append(c.Effect, "This network is larger than any that one organisation has: it shuts out others, and perhaps everybody.")
		}
	case "user":
		if _, failed := db.User(ctx, a.User); errors.Is(failed, admin.ErrNotFound) {
			c.Effect = append(c.Effect, "The policy has no user of this name.")
		}
	default:
		user, err := db.UserOfKey(ctx, a.KeyID)
		if err != nil {
			return nil, err
		}
		c.Effect = append(c.Effect, "It is a key of "+user+".")
	}
	_, err = db.Ban(ctx, t.kind, t.which, until, a.Reason)
	if t.ban != nil {
		c.Effect = append(c.Effect, "It replaces a ban by "+t.ban.BannedBy+".")
		c.Undo = a.again(t.ban, now)
	}
	return c, err
}

type unbanAction struct {
	banned
	signature
}

func (a *unbanAction) do(ctx context.Context, db *admin.Database, now time.Time) (*change, error) {
	t, err := a.target(ctx, db)
	if err != nil {
		return nil, err
	}
	err = db.Unban(ctx, t.kind, t.which)
	c := &change{Question: fmt.Sprintf("Lift the ban of %s?", t), Effect: []string{"Its requests count as before within a second."}, Done: fmt.Sprintf("The ban of %s is lifted.", t)}
	if t.ban != nil {
		c.Undo = a.again(t.ban, now)
		if t.ban.Reason != nil {
			c.Effect = append(c.Effect, "It was banned by "+t.ban.BannedBy+": "+*t.ban.Reason)
		}
	}
	return c, err
}

type resetAction struct {
	Prefix string `json:"prefix"`
	Key    string `json:"key"`
	signature
}

func (a *resetAction) do(ctx context.Context, db *admin.Database, _ time.Time) (*change, error) {
	found, err := db.Counters(ctx, a.Prefix, a.Key)
	if err == nil {
		err = db.Reset(ctx, a.Prefix, a.Key)
	}
	if err != nil {
		return nil, err
	}
	return &change{
		Question: fmt.Sprintf("Give %s its full quota of %s back?", found[0].Key, found[0].Prefix), Effect: []string{"The counter is deleted. There is no way back."}, Danger: true,
		Done: "The full quota is back. A proxy that has just refused the key may refuse it for a second more.",
	}, nil
}
