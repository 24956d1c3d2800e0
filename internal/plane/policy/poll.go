package policy

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// poll refreshes until the policy is closed. All proxies resume polling when an outage ends, so each pause
// has a random part, which spreads the polls.
func (p *Policy) poll() {
	for p.closing.Err() == nil {
		_ = p.Refresh(p.closing)
		pause := time.Duration((0.75 + p.settings.Random()/2) * float64(p.settings.Refresh))
		health.Sleep(p.closing, pause)
	}
}

// Refresh polls for changes and applies them before it returns. It also deletes old changes if that is due.
// Concurrent calls wait for each other.
func (p *Policy) Refresh(ctx context.Context) error {
	p.refreshing.Lock()
	defer p.refreshing.Unlock()
	if p.closing.Err() != nil {
		return ratelimit.ErrClosed
	}
	var sent time.Time
	var err error
	for {
		sent = time.Now()
		err = batch.Try(func() error { return p.refresh(ctx) })
		if err == nil || errors.Is(err, ratelimit.ErrUnavailable) || p.snapshot() != nil ||
			ctx.Err() != nil || p.closing.Err() != nil || !p.isMigrating(ctx) {
			break
		}
		health.Sleep(ctx, lockedPause)
	}
	p.creation.End()
	if p.closing.Err() != nil {
		return ratelimit.ErrClosed
	}
	p.report("refresh", err)
	if err == nil {
		p.stats.Store(&Stats{Polled: p.settings.Now(), Applied: p.head.Applied})
		p.lookups.health.Answered()
		p.lookups.setPollErr(nil)
		p.lookups.renewDue()
		lines := p.problems()
		var problem error
		if lines != nil {
			problem = errors.New(strings.Join(lines, "; "))
		}
		p.report("problems", problem)
		if p.settings.OnApplied != nil {
			_ = batch.PanicError(func() {
				changesOID := p.head.Server[strings.IndexByte(p.head.Server, ' ')+1:]
				p.settings.OnApplied(p.head.Changed, changesOID, lines)
			})
		}
		if now := p.settings.Now(); now.Sub(p.forgotAt) >= forgetInterval {
			p.forgotAt = now
			forget := &pgdb.Statement{SQL: "SELECT rate_limit_forget()::text", Unnamed: true,
				Synchronous: true}
			_, failure := read(ctx, p.db, loadTimeout, "deleting old changes", forget)
			p.report("forget", failure)
		}
		return nil
	}
	switch {
	case errors.Is(err, ratelimit.ErrUnavailable):
		_ = p.lookups.health.Failed(sent, refreshTimeout, err)
	case errors.Is(err, schema.ErrVersion):
		p.failAll(err)
	default:
		p.lookups.setPollErr(unavailable(err))
	}
	return err
}

// failAll lets all evaluations fail with err, except those that the rules and bans in memory refuse. The next
// successful poll reads everything anew.
func (p *Policy) failAll(err error) {
	p.lookups.setPollErr(err)
	p.head = head{}
	p.tables.Done = false
	if s := p.snapshot(); s != nil && s.fault == nil {
		closed := *s
		closed.fault = err
		p.inForce.Store(&closed)
	}
}

// refresh polls for changes and applies them. Refresh reports its error.
func (p *Policy) refresh(ctx context.Context) error {
	now := p.settings.Now()
	err := p.prepare(ctx, now)
	if errors.Is(err, ratelimit.ErrUnavailable) || errors.Is(err, schema.ErrVersion) {
		return err
	}
	err = p.findChanges(ctx)
	if err != nil && p.tables.Err != nil && !errors.Is(err, errIncomplete) &&
		!errors.Is(err, ratelimit.ErrUnavailable) {
		return fmt.Errorf("%w; %w", err, p.tables.Err)
	}
	if err != nil {
		return err
	}
	p.polled = true
	due := &p.due
	if !now.Before(p.fullReadAt) {
		due.rules = true
		due.bans = true
	}
	if due.rules && due.bans {
		p.fullReadAt = now.Add(time.Duration((0.5 + p.settings.Random()) * float64(fullReadInterval)))
	}
	// A changed key may have another user, and a changed user another parent, who may be banned.
	due.bannedKeys = due.bannedKeys || due.bans ||
		len(p.compiled.bans.bySender) > 0 && len(due.digests)+len(due.users) > 0
	err = p.load(ctx)
	if errors.Is(err, errIncomplete) {
		p.head = head{} // the next poll finds that everything may have changed; until then identities stay
		return err
	}
	// Identities are evicted before the new snapshot is in force, because an identity with the old name of a
	// renamed tier would match none of the new rules. The eviction takes place even if the rules cannot be
	// read.
	p.identities.evict(due)
	if err == nil {
		atomic.StoreInt32(&p.CountingTokens, p.compiled.set.countingTokens)
		p.inForce.Store(p.compiled)
		p.setReady()
	}
	return err
}

// isMigrating reports whether another session creates or upgrades the tables. Requests then wait for it.
func (p *Policy) isMigrating(ctx context.Context) bool {
	lock := &pgdb.Statement{SQL: schema.Locked, Unnamed: true}
	_, err := read(ctx, p.db, refreshTimeout, "looking for a migration", lock)
	locked := pg.Bigints(lock.Result)
	if err != nil || len(locked) != 1 || locked[0] == 0 {
		return false
	}
	p.lookups.health.Answered()
	p.lookups.setPollErr(nil)
	p.creation.Begin()
	return true
}

// prepare finds out whether this program can use the tables, and creates them if there are none. With an
// error other than ratelimit.ErrUnavailable and schema.ErrVersion, a poll can succeed. After the first poll,
// missing tables are not created again: they would be empty and hinder a restore.
func (p *Policy) prepare(ctx context.Context, now time.Time) error {
	creates := !p.settings.DisableMigration && !p.polled
	err := p.tables.Try(ctx, p.db, creates, now, func() {
		p.lookups.health.Answered()
		if p.tables.Err == nil {
			p.creation.Begin()
		}
	})
	if !errors.Is(err, ratelimit.ErrUnavailable) {
		p.report("tables", err)
	}
	return err
}

// load reads the rules and bans that are due, compiles them to p.compiled, and clears them in p.due. It keeps
// the compiled rules or bans if their rows are unchanged.
func (p *Policy) load(ctx context.Context) error {
	rows := p.rows
	due := &p.due
	var err error
	if due.rules {
		rows.rules, err = readWhole(ctx, p.db, loadTimeout, "reading the rules", p.rulesSQL)
	}
	if due.bans && err == nil {
		rows.bans, err = readWhole(ctx, p.db, loadTimeout, "reading the bans", bansSQL)
	}
	if err != nil {
		return err
	}
	var keysErr error
	if due.bannedKeys {
		const what = "reading the banned API keys"
		rows.bannedKeys, keysErr = readWhole(ctx, p.db, refreshTimeout, what, bannedKeysSQL)
		if errors.Is(keysErr, errIncomplete) {
			return keysErr
		}
		if keysErr != nil {
			rows.bannedKeys = p.rows.bannedKeys // the previous list stays in force
		}
		p.report("banned keys", keysErr)
	}
	next := *p.compiled
	if !reflect.DeepEqual(rows.bans, p.rows.bans) ||
		!reflect.DeepEqual(rows.bannedKeys, p.rows.bannedKeys) {
		d, err := decodePolicy(append(append([][]byte(nil), rows.bans...), rows.bannedKeys...))
		if err != nil {
			return err
		}
		next.bans = newBanSet(d.bans, d.inForce)
	}
	if !reflect.DeepEqual(rows.rules, p.rows.rules) {
		d, err := decodePolicy(rows.rules)
		if err != nil {
			return err
		}
		next.set = newRuleSet(d.rules, d.overrides, next.set.rules, p.settings.MemoSize)
		next.prices = NewPrices(d.prices).list
	}
	if next.set != p.compiled.set || next.bans != p.compiled.bans {
		p.compiled = &next // else the states of senders stay valid
	}
	p.rows = rows
	due.rules = false
	due.bans = false
	due.bannedKeys = keysErr != nil
	return nil
}

// problems describes outdated tables, the rules that cannot be used, too many bans in force, and tiers of
// Settings.Anonymous.
// The view rate_limit_rule_warnings reads the names of rules from these texts.
func (p *Policy) problems() []string {
	s := p.compiled
	var lines []string
	at := p.settings.Now().UnixMicro()
	p.settings.Anonymous.Range(func(tier, _ any) bool {
		if !limitsTier(s.set, tier.(string), at) {
			lines = append(lines, fmt.Sprintf("a site has without_key anonymous, and no rule in force "+
				"limits the tier %q: add one, or an exempt rule for the tier, which says that this is "+
				"meant", tier))
		}
		return true
	})
	if outdated := schema.Outdated(p.head.Revision); outdated != "" {
		lines = append(lines, outdated)
	}
	sort.Strings(lines)
	for _, w := range s.set.unusable {
		line := "rule " + w.Rule
		if w.Override != "" {
			line += ", override for " + w.Override
		}
		line += ": " + w.Err.Error()
		if w.Kept {
			line += " (it stays as it was)"
		} else {
			line += " (it is off)"
		}
		lines = append(lines, line)
	}
	if s.bans.inForce > maxBans {
		lines = append(lines, fmt.Sprintf("%d bans are in force, and only the newest %d hold: ban networks "+
			"instead of addresses, or end some", s.bans.inForce, maxBans))
	}
	return lines
}

// limitsTier reports whether a rule in force names a tier, or limits all requests without an API key. A rule
// that exempts only some requests of the tier says nothing of the others.
func limitsTier(set *ruleSet, tier string, at int64) bool {
	for _, r := range set.rules {
		row := &r.row
		if row.Mode == option.Shadow || at < row.From || at >= r.until {
			continue
		}
		ofAll := len(row.Hosts)+len(row.Paths)+len(row.Methods)+len(row.Networks) == 0
		if contains(row.Tiers, tier) && (row.Action != ActionExempt || ofAll) ||
			row.Action == ActionLimit && len(row.Tiers) == 0 && ofAll && countsAnonymous(&r.countBy) {
			return true
		}
	}
	return false
}

// countsAnonymous reports whether a request without a user and an API key has all that a rule counts by. Its
// network stands for a user that is the last alternative.
func countsAnonymous(by *counterBy) bool {
	for _, part := range by.parts {
		has := part[len(part)-1].name == "user"
		for _, d := range part {
			has = has || d.name != "key" && d.name != "user"
		}
		if !has {
			return false
		}
	}
	return true
}

// report passes an error to OnError, unless the last error of its kind had the same text.
func (p *Policy) report(kind string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if p.reported[kind] == text {
		return
	}
	p.reported[kind] = text
	if err != nil && p.settings.OnError != nil {
		_ = batch.PanicError(func() { p.settings.OnError(err) })
	}
}
