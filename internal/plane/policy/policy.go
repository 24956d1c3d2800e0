package policy

import (
	"context"
	"math/rand"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Settings are the settings of a Policy.
type Settings struct {
	// Remember is for how many combinations of tier, method, host and path a snapshot remembers which rules
	// match. It is worth its memory where the code is interpreted. 0 is none.
	Remember int

	// Refresh is the mean time between two polls for changes. 0 means
	// DefaultRefresh; below 0 there are none but those of Policy.Refresh.
	Refresh time.Duration

	// MaxIdentities bounds the API keys and users that are remembered. 0 means
	// DefaultIdentities. Unknown keys have a bound of their own, MostUnknown.
	MaxIdentities int

	// DisableMigration leaves it to the operator to run schema.sql.
	DisableMigration bool

	// OnApplied is called after each poll with the highest number of a change that is obeyed,
	// the log of changes that the number is of, and the rules that cannot be used, each with what
	// it should be. It must not block. Nil is ignored. See registry.Registry.SetApplied.
	OnApplied func(seq int64, log string, problems []string)

	// Health is the health of the server, which the policy shares with the store. Required.
	Health *health.Health

	// Now replaces this machine's clock, for tests.
	Now func() time.Time

	// Random replaces random numbers from 0 to 1, for a simulation.
	Random func() float64

	// OnError is called with failures that no caller sees, each once until it is over, and
	// with the rules that cannot be used. It must not block. Nil drops them.
	OnError func(error)
}

const (
	// DefaultRefresh is the mean time between two polls: a change is obeyed within a second, for two cheap
	// statements a second.
	DefaultRefresh = 500 * time.Millisecond

	// refreshTimeout is for a poll, and for each of the statements that follow it.
	refreshTimeout = 2 * time.Second
	// loadTimeout is for a statement that reads rules or bans, and for the migration.
	loadTimeout = 30 * time.Second
	// migrateInterval is the time between two migrations that fail.
	migrateInterval = 10 * time.Second
	// wholeInterval is the mean time between two reads of all rules and bans although no change is known. Up
	// to a half more or less keeps the proxies apart.
	wholeInterval = 10 * time.Minute
	// renewMicros is the age at which an identity is looked up anew, in microseconds.
	renewMicros = int64(time.Minute / time.Microsecond)
	// forgetInterval is the time between two deletions of old changes, each of up to 10,000.
	forgetInterval = time.Minute
)

// Stats are counts of a policy.
type Stats struct {
	Rules      int   // rules that have an effect
	Wrong      int   // rules and overrides that cannot be used
	Identities int   // API keys and users that are remembered
	LookUps    int64 // statements that looked up API keys and users
	Applied    int64 // the highest number of a change that is obeyed

	// Polled is when the last poll that the database answered was over; the zero time is
	// never.
	Polled time.Time
}

// Policy evaluates the rules in a database, and applies a change of them within Refresh. It is safe for
// concurrent use.
type Policy struct {
	db         pgdb.DB
	settings   Settings
	lookups    *lookups
	identities *Identities
	current    atomic.Value    // a *Snapshot, once there are rules
	ready      context.Context // ends when current is set, or the policy is closed
	setReady   context.CancelFunc
	closing    context.Context
	close      context.CancelFunc
	started    sync.Once

	refreshing sync.Mutex // locked during a refresh; guards all that follows
	poller     poller
	polled     bool // once: tables that are gone are not made again
	migrated   bool
	lacking    error     // the last failure of the migration
	migrateAt  time.Time // when it is tried again
	due        changes   // of rules and bans: found, and not read yet
	stale      changes   // of identities: found, and not forgotten yet
	rows       policyRows
	wholeAt    time.Time // the next read of everything, whatever has changed
	forgotten  time.Time
	reported   map[string]string // the last error, by what failed

	stats atomic.Value // a *Stats with Polled and Applied, after the first poll
}

// policyRows are the rules and bans as the database returned them.
type policyRows struct {
	rules []string
	bans  []string // of networks and users
	keys  []string // banned ones
}

// New returns a policy on db. It does not touch the network yet, and does not close db.
func New(db pgdb.DB, s Settings) *Policy {
	if s.Refresh == 0 {
		s.Refresh = DefaultRefresh
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	if s.Random == nil {
		s.Random = rand.Float64
	}
	p := &Policy{
		db: db, settings: s, identities: NewIdentities(s.MaxIdentities),
		poller: poller{db: db}, reported: make(map[string]string),
	}
	p.closing, p.close = context.WithCancel(context.Background())
	p.lookups = newLookups(db, p.identities, s.Health, s.Now)
	p.ready, p.setReady = context.WithCancel(p.closing)
	return p
}

// Prepare starts, in the background, what the first request would otherwise wait for, and
// the polls.
func (p *Policy) Prepare() {
	p.started.Do(func() {
		if p.settings.Refresh > 0 {
			go p.poll()
		}
	})
}

// Close ends the polls. Later evaluations that need the database return ratelimit.ErrClosed.
func (p *Policy) Close() {
	p.close()
	p.lookups.close()
}

// Stats returns the counts as of now.
func (p *Policy) Stats() Stats {
	stats := Stats{}
	if polled, _ := p.stats.Load().(*Stats); polled != nil {
		stats = *polled
	}
	if s := p.snapshot(); s != nil {
		stats.Rules = s.Rules()
		stats.Wrong = len(s.set.wrong)
	}
	stats.Identities, _ = p.identities.Len()
	stats.LookUps, _ = p.lookups.state()
	return stats
}

// snapshot returns the snapshot in force, or nil before the first rules.
func (p *Policy) snapshot() *Snapshot {
	s, _ := p.current.Load().(*Snapshot)
	return s
}

// Evaluate says what the policy does with a request: with the API key, else with the user that
// the proxy authenticated; both are "" for neither. It writes the verdict to o.
//
// The first rules may take timeout. A look-up of a key or a user that is not remembered may take
// health.MostTimeouts of them. The error is ratelimit.ErrTimeout, or ratelimit.ErrUnavailable while the
// database does not answer or too many wait, or ratelimit.ErrOverloaded if the time was over while the
// database answered others. What is remembered needs no database, and a request that is banned is not looked
// up.
//
// If a look-up fails, o is the verdict of what holds for every sender: bans, exempt and block rules without
// tiers, and limits of rules that have neither tiers nor a family and count by no user, key or tier. The
// error is returned unless that refuses the request, or exempts it and any key is good enough. Without rules,
// o is empty.
func (p *Policy) Evaluate(
	ctx context.Context, timeout time.Duration, key, user string, f *Facts, o *Verdict,
) error {
	s := p.snapshot()
	if s == nil {
		began := time.Now()
		if err := p.first(ctx, timeout); err != nil {
			o.Reset()
			o.Tier = f.Tier
			return err
		}
		s = p.snapshot()
		timeout -= time.Since(began)
	}
	now := p.settings.Now()
	var id *Identity
	if key != "" || user != "" {
		sender := Credential{}
		if key == "" {
			sender.User = user
		} else {
			sender.Digest = Digest(key)
		}
		var read int64
		id, read = FindIdentity(p.identities, sender, now)
		switch {
		case id == nil && strings.HasPrefix(key, KeyPrefix) && !Check(key):
			id = &Identity{Digest: sender.Digest} // no such key can exist
		case id == nil && len(sender.User) > ratelimit.MaxKey:
			id = &Identity{User: user} // no such user can be in the database, and none of them is cached
		case id == nil:
			return p.lookUp(ctx, timeout, sender, key, f, o)
		case now.UnixMicro()-read >= renewMicros:
			p.lookups.renew(sender)
		}
	}
	Evaluate(s, f, id, now, o)
	return nil
}

// lookUp evaluates the rules for a sender that is not remembered.
func (p *Policy) lookUp(
	ctx context.Context, timeout time.Duration, sender Credential, key string, f *Facts, o *Verdict,
) error {
	id := &Identity{Digest: sender.Digest, User: sender.User}
	evaluateUnknown(p.snapshot(), f, id, p.settings.Now(), o)
	if o.Reason == Banned {
		return nil
	}
	text := ""
	if p.settings.Remember > 0 && len(key) <= longestRemembered && Bearer(key) == key {
		text = strings.Clone(key) // it may be a part of a long request
	}
	found, err := p.lookups.get(ctx, timeout, sender, text, f.Address)
	switch {
	case err == nil:
		Evaluate(p.snapshot(), f, found, p.settings.Now(), o)
	case o.Refused() || o.Exempt && (sender.User != "" || !f.RejectUnknown):
		err = nil
	}
	return err
}

// first waits for the first rules.
func (p *Policy) first(ctx context.Context, timeout time.Duration) error {
	p.Prepare()
	if _, err := p.lookups.state(); err != nil {
		return err
	}
	if err := waitFor(ctx, p.ready, timeout); err != nil {
		return err
	}
	if p.snapshot() == nil {
		return ratelimit.ErrClosed
	}
	return nil
}

// Recall does what p.Evaluate does for a request with a remembered API key, in fewer steps
// for the interpreter: see internal/testkit/imports. It finds the key without a digest. Without it, such a
// request takes 1.3 times the processor time in Traefik: see ask in package serve for the
// benchmark. It reports false if p.Evaluate has to be called, and then leaves o as it is. It remembers
// keys only with Settings.Remember.
func Recall(p *Policy, key string, f *Facts, o *Verdict) bool {
	c := p.identities
	c.mu.RLock()
	e := c.texts[key]
	c.mu.RUnlock()
	if e == nil {
		return false
	}
	now := p.settings.Now()
	if now.UnixMicro()-e.at >= renewMicros {
		return false
	}
	if atomic.LoadUint32(&e.used) == 0 {
		atomic.StoreUint32(&e.used, 1)
	}
	// There are rules: p.Evaluate has used the key.
	Evaluate(p.current.Load().(*Snapshot), f, e.id, now, o)
	return true
}
