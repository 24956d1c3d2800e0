package policy

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
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
	sent := time.Now()
	err := batch.Try(func() error { return p.refresh(ctx) })
	if p.closing.Err() != nil {
		return ratelimit.ErrClosed
	}
	p.report("refresh", err)
	if err == nil {
		p.stats.Store(&Stats{Polled: p.settings.Now(), Applied: p.head.Applied})
		p.lookups.health.Answered()
		p.lookups.setPollErr(nil)
		p.lookups.renewDue()
		if p.settings.OnApplied != nil {
			_ = batch.PanicError(func() {
				changesOID := p.head.Server[strings.IndexByte(p.head.Server, ' ')+1:]
				p.settings.OnApplied(p.head.Changed, changesOID, problems(p.compiled))
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
	if errors.Is(err, ratelimit.ErrUnavailable) {
		_ = p.lookups.health.Failed(sent, refreshTimeout, err)
	} else {
		p.lookups.setPollErr(unavailable(err))
	}
	return err
}

// refresh polls for changes and applies them. Refresh reports its error.
func (p *Policy) refresh(ctx context.Context) error {
	now := p.settings.Now()
	// After the first poll, missing tables are not created again: they would be empty and hinder a restore.
	if !p.polled {
		if err := p.migrate(ctx, now); errors.Is(err, ratelimit.ErrUnavailable) {
			return err
		}
	}
	err := p.findChanges(ctx)
	if err != nil && p.migrateErr != nil && !errors.Is(err, errIncomplete) &&
		!errors.Is(err, ratelimit.ErrUnavailable) {
		return fmt.Errorf("%w; %w", err, p.migrateErr)
	}
	if err != nil {
		return err
	}
	p.polled = true
	if err := p.migrate(ctx, now); errors.Is(err, ratelimit.ErrUnavailable) {
		return err
	}
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
		p.inForce.Store(p.compiled)
		p.setReady()
	}
	return err
}

// migrate creates or upgrades the tables, unless a migration has succeeded, or failed within migrateInterval.
// migrate returns the error of the last attempt. Despite this error, a poll can succeed on tables that exist.
func (p *Policy) migrate(ctx context.Context, now time.Time) error {
	if p.settings.DisableMigration || p.migrated {
		return nil
	}
	if p.migrateErr != nil && now.Before(p.migrateAt) {
		return p.migrateErr
	}
	err := Migrate(ctx, p.db)
	if errors.Is(err, ratelimit.ErrUnavailable) {
		return err
	}
	p.migrated = err == nil
	p.migrateErr = err
	p.migrateAt = now.Add(migrateInterval)
	p.report("migration", err)
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
		next.prices = newPriceList(d.prices)
	}
	p.compiled = &next
	p.rows = rows
	due.rules = false
	due.bans = false
	due.bannedKeys = keysErr != nil
	var problem error
	if lines := problems(p.compiled); lines != nil {
		problem = errors.New(strings.Join(lines, "; "))
	}
	p.report("problems", problem)
	return nil
}

// problems describes the rules that cannot be used, and too many bans in force. The view
// rate_limit_rule_warnings reads the names of rules from these texts.
func problems(s *Snapshot) []string {
	var lines []string
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
