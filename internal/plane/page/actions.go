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
	switch kind {
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
