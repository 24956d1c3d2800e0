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
	live, before := get(ctx, &err, db.LiveProxies), get(ctx, &err, db.Paused)
	p := get(ctx, &err, func(ctx context.Context) (*admin.Pause, error) { return db.Pause(ctx, lasts, a.Reason) })
	if err != nil {
		return nil, err
	}
	c := &change{
		Text: fmt.Sprintf("Pause all limits of this database until %s (%s)", clock(p.Until, now), span(lasts)), Danger: true,
		Effect: []string{
			counted(int64(len(live)), "proxy lets", "proxies let") + " all requests pass within a second, uncounted.",
			"Bans and block rules hold.", "The pause ends by itself.",
		},
		Undo: pauseAgain(before, now),
	}
	if before != nil {
		c.Effect = append(c.Effect, "It replaces the pause of "+before.PausedBy+" until "+clock(before.Until, now)+".")
	}
	if c.Undo == nil {
		c.Undo = &undo{"resume", struct{}{}, "End the pause"}
	}
	return c, nil
}

// pauseAgain is the action that makes a pause as it was; nil if there was none, or too little of it is left.
func pauseAgain(before *admin.Pause, now time.Time) *undo {
	if before == nil || before.Until.Sub(now) < time.Second {
		return nil
	}
	left := min(before.Until.Sub(now), longestPause).Truncate(time.Second)
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
	return &change{
		Text:   fmt.Sprintf("End the pause of %s, which lasts until %s", p.PausedBy, clock(p.Until, now)),
		Effect: []string{"All limits apply again within a second."}, Undo: pauseAgain(p, now),
	}, nil
}

// banned is what a ban is for. One field is set.
type banned struct {
	Network string `json:"network,omitempty"`
	User    string `json:"user,omitempty"`
	KeyID   int64  `json:"key_id,omitempty"`
}

// target is the kind of what a ban is for, and its name, as admin.Ban has them.
func (b *banned) target() (kind, which string, err error) {
	given := 0
	if b.User != "" {
		kind, which, given = "user", b.User, given+1
	}
	if b.KeyID != 0 {
		kind, which, given = "key", fmt.Sprint(b.KeyID), given+1
	}
	if b.Network != "" {
		network, err := admin.ParseNetwork("network", b.Network)
		if err != nil {
			return "", "", err
		}
		kind, which, given = "network", network.String(), given+1
	}
	if given != 1 {
		err = &ratelimit.FieldError{Field: "network", Value: b.Network, Want: "given, or user or key_id, and only one of them"}
	}
	return kind, which, err
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
	kind, which, err := a.target()
	if err != nil {
		return nil, err
	}
	ends := "for ever"
	if !until.IsZero() {
		ends = "until " + clock(until, now)
	}
	c := &change{
		Text:   fmt.Sprintf("Ban the %s %s %s", kind, which, ends),
		Effect: []string{"All proxies with a policy refuse its requests with status 403 within a second."}, Danger: true,
	}
	switch kind {
	case "network":
		if admin.IsWide(netip.MustParsePrefix(which)) {
			c.Effect = append(c.Effect, "This network is larger than any that one organisation has: it shuts out others, and perhaps everybody.")
		}
	case "user":
		if _, failed := db.User(ctx, which); errors.Is(failed, admin.ErrNotFound) {
			c.Effect = append(c.Effect, "The policy has no user of this name.")
		}
	default:
		user, err := db.UserOfKey(ctx, a.KeyID)
		if err != nil {
			return nil, err
		}
		c.Effect = append(c.Effect, "It is a key of "+user+".")
	}
	before, err := db.Bans(ctx)
	if err != nil {
		return nil, err
	}
	for _, b := range before {
		if b.Kind == kind && b.Banned == which {
			c.Effect = append(c.Effect, "It replaces a ban by "+b.BannedBy+".")
		}
	}
	_, err = db.Ban(ctx, kind, which, until, a.Reason)
	return c, err
}

type unbanAction struct {
	banned
	signature
}

func (a *unbanAction) do(ctx context.Context, db *admin.Database, _ time.Time) (*change, error) {
	kind, which, err := a.target()
	if err == nil {
		err = db.Unban(ctx, kind, which)
	}
	return &change{Text: fmt.Sprintf("Lift the ban of the %s %s", kind, which), Effect: []string{"Its requests count as before within a second."}}, err
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
		Text: fmt.Sprintf("Give %s its full quota of %s back", found[0].Text("key"), found[0].Text("prefix")), Danger: true,
		Effect: []string{"The counter is deleted. There is no way back.", "A proxy that has just refused the key may refuse it for a second more."},
	}, nil
}

type undoAction struct {
	Change int64 `json:"change"`
	signature
}

func (a *undoAction) do(ctx context.Context, db *admin.Database, now time.Time) (*change, error) {
	did, err := db.Ask(ctx, `SELECT c.at, c.by, c.kind || ' ' || c.which || ': ' || array_to_string(c.what, ', ') AS text, bool_and(c.kind IN ('ban', 'override')) OVER () AS own
FROM rate_limit_changed c
WHERE c.seq IN (SELECT same.seq FROM rate_limit_changes one JOIN rate_limit_changes same USING (xid, at) WHERE one.seq = $1) ORDER BY c.seq LIMIT 20`, a.Change)
	switch {
	case err != nil:
		return nil, err
	case len(did) == 0:
		return nil, &failure{404, "change", "the database does not have this change any more"}
	case did[0].Get("own") != true:
		return nil, &ratelimit.FieldError{Field: "change", Value: fmt.Sprint(a.Change), Want: "a change of bans and overrides alone: the page changes nothing else of the policy"}
	}
	if _, err := db.Undo(ctx, a.Change); err != nil {
		return nil, err
	}
	c := &change{Text: "Take back what " + did[0].Text("by") + " did at " + clock(did[0].Get("at").(time.Time), now)}
	for i := range did {
		c.Effect = append(c.Effect, did[i].Text("text"))
	}
	c.Effect = append(c.Effect, obeyed)
	return c, nil
}
