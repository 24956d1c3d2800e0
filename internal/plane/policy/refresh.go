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
)

// poll refreshes until the policy is closed. The time to the next poll has a random part. Otherwise the
// proxies would go on asking at the same moment once they have got an answer, or the end of their
// connections, at the same moment.
func (p *Policy) poll() {
	for p.closing.Err() == nil {
		_ = p.Refresh(p.closing)
		pause := time.Duration((0.75 + p.settings.Random()/2) * float64(p.settings.Refresh))
		health.Sleep(p.closing, pause)
	}
}

// Refresh asks the database for changes now, and applies them before it returns. It also does the upkeep that
// is due. It waits for another refresh that is under way.
func (p *Policy) Refresh(ctx context.Context) error {
	p.refreshing.Lock()
	defer p.refreshing.Unlock()
	if p.closing.Err() != nil {
		return ratelimit.ErrClosed
	}
	var err error
	begin := p.lookups.health.Begin()
	if failure := batch.PanicError(func() { err = p.refresh(ctx) }); failure != nil {
		err = failure
	}
	if p.closing.Err() != nil {
		return ratelimit.ErrClosed
	}
	p.report("refresh", err)
	if err == nil {
		p.stats.Store(&Stats{Polled: p.settings.Now(), Applied: p.poller.applied})
		p.lookups.health.Answered()
		p.lookups.setFailed(nil)
		p.lookups.renewDue()
		if p.settings.OnApplied != nil {
			_ = batch.PanicError(func() {
				p.settings.OnApplied(p.poller.applied, p.poller.log(), problems(p.snapshot()))
			})
		}
		if now := p.settings.Now(); now.Sub(p.forgotten) >= forgetInterval {
			p.forgotten = now
			const sql = "SELECT rate_limit_forget()::text"
			_, failure := read(ctx, p.db, loadTimeout, "deleting old changes", sql)
			p.report("forget", failure)
		}
		return nil
	}
	switch {
	case !errors.Is(err, ratelimit.ErrUnavailable):
		p.lookups.setFailed(unavailable(err))
	case ctx.Err() == nil:
		_ = p.lookups.health.Failed(begin, refreshTimeout, err)
	}
	return err
}

// refresh does the work of Refresh. Refresh handles its error.
func (p *Policy) refresh(ctx context.Context) error {
	now := p.settings.Now()
	// Tables that were there and are gone are not made again: they would be empty, and in the
	// way of a restore.
	var needs error
	if !p.polled {
		needs = p.migrate(ctx, now)
		if errors.Is(needs, ratelimit.ErrUnavailable) {
			return needs
		}
	}
	within, cancel := context.WithTimeout(ctx, refreshTimeout)
	found, err := p.poller.poll(within)
	cancel()
	if err != nil && needs != nil && !errors.Is(err, errIncomplete) &&
		!errors.Is(err, ratelimit.ErrUnavailable) {
		return fmt.Errorf("%w; %w", err, needs)
	}
	if err != nil {
		return err
	}
	p.polled = true
	p.due.rules = p.due.rules || found.rules
	p.due.bans = p.due.bans || found.bans
	// The user of a key may have changed.
	s := p.snapshot()
	ofSenders := s != nil && len(s.bans.bySender) > 0
	p.due.keys = p.due.keys || found.bans || ofSenders && len(found.digests) > 0
	p.stale = found
	defer p.forgetStale() // even if the rules cannot be read: the next poll does not return these changes
	if err := p.migrate(ctx, now); errors.Is(err, ratelimit.ErrUnavailable) {
		return err
	}
	if !now.Before(p.wholeAt) {
		p.due = everything
	}
	if err := p.load(ctx, now); err != nil {
		if errors.Is(err, errIncomplete) {
			p.poller.snapshot = "" // all that follows a restore is read, and identities stay until then
			p.stale = changes{}
		}
		return err
	}
	return nil
}

// migrate creates or upgrades the tables, unless they are right, or the last attempt has failed
// a short time ago. It returns what is lacking. The polls work nevertheless if the tables are
// there.
func (p *Policy) migrate(ctx context.Context, now time.Time) error {
	if p.settings.DisableMigration || p.migrated {
		return nil
	}
	if p.lacking != nil && now.Before(p.migrateAt) {
		return p.lacking
	}
	within, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	err := Migrate(within, p.db)
	if errors.Is(err, ratelimit.ErrUnavailable) {
		return err
	}
	p.migrated = err == nil
	p.lacking = err
	p.migrateAt = now.Add(migrateInterval)
	p.report("migration", err)
	return err
}

// forgetStale forgets the identities that have changed. It runs just before the snapshot of the
// same change takes effect: in between, a tier that was renamed would be that of no rule.
func (p *Policy) forgetStale() {
	found := p.stale
	p.stale = changes{}
	if found.identities {
		p.identities.EvictAll()
		return
	}
	for _, user := range found.users {
		p.identities.EvictUser(user)
	}
	for _, digest := range found.digests {
		p.identities.EvictKey(digestOf(digest))
	}
}

// load reads the rules and bans that are due.
func (p *Policy) load(ctx context.Context, now time.Time) error {
	if !p.due.rules && !p.due.bans && !p.due.keys {
		return nil
	}
	rows := p.rows
	var err error
	if p.due.rules {
		rows.rules, err = readWhole(ctx, p.db, loadTimeout, "reading the rules", rulesSQL)
	}
	if p.due.bans && err == nil {
		rows.bans, err = readWhole(ctx, p.db, loadTimeout, "reading the bans", bansSQL)
	}
	keysFailed := false
	if p.due.keys && err == nil {
		keys, failure := readWhole(ctx, p.db, refreshTimeout, "reading the banned API keys", bannedKeysSQL)
		if errors.Is(failure, errIncomplete) {
			return failure
		}
		keysFailed = failure != nil
		if !keysFailed { // else they stay as they are
			rows.keys = keys
		}
		p.report("banned keys", failure)
	}
	if err == nil {
		err = p.compile(rows)
	}
	if err != nil {
		return err
	}
	if p.due.rules && p.due.bans {
		p.wholeAt = now.Add(time.Duration((0.5 + p.settings.Random()) * float64(wholeInterval)))
	}
	p.due = changes{keys: keysFailed}
	return nil
}

// compile makes the snapshot of rows, and lets it take effect. What is as before is not
// compiled again.
func (p *Policy) compile(rows policyRows) error {
	old := p.snapshot()
	sameRules := old != nil && reflect.DeepEqual(rows.rules, p.rows.rules)
	sameBans := old != nil && reflect.DeepEqual(rows.bans, p.rows.bans) &&
		reflect.DeepEqual(rows.keys, p.rows.keys)
	if sameRules && sameBans {
		return nil
	}
	next := &Snapshot{}
	if sameBans {
		next.bans = old.bans
	} else {
		d, err := decodePolicy(append(append([]string(nil), rows.bans...), rows.keys...))
		if err != nil {
			return err
		}
		next.bans = newBanSet(d.bans)
		next.bans.inForce = d.inForce
	}
	if sameRules {
		next.set = old.set
	} else {
		d, err := decodePolicy(rows.rules)
		if err != nil {
			return err
		}
		var before []*rule
		if old != nil {
			before = old.set.rules
		}
		next.set = newRuleSet(d.rules, d.overrides, before, p.settings.Remember)
	}
	var problem error
	if all := problems(next); all != nil {
		problem = errors.New(strings.Join(all, "; "))
	}
	p.report("problems", problem)
	p.rows = rows
	p.forgetStale()
	p.current.Store(next)
	p.setReady()
	return nil
}

// problems says which rules cannot be used, and whether too many bans are in force.
func problems(s *Snapshot) []string {
	var all []string
	for _, w := range s.set.wrong {
		text := "rule " + w.Rule
		if w.Override != "" {
			text += ", override for " + w.Override
		}
		text += " cannot be used: " + w.Err.Error()
		if w.Kept {
			text += " (it stays as it was)"
		} else {
			text += " (it is off)"
		}
		all = append(all, text)
	}
	if s.bans.inForce > bannedMost {
		all = append(all, fmt.Sprintf("%d bans are in force, and only the newest %d hold: ban networks "+
			"instead of addresses, or end some", s.bans.inForce, bannedMost))
	}
	return all
}

// report passes a failure to OnError, unless it is the same as the last one of its kind.
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
