package policy

import (
	"context"
	"math/rand"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Settings are the settings of a Policy.
type Settings struct {
	// MemoSize bounds the combinations of tier, method, host and path in the memo of a snapshot. The memo
	// saves time where the code is interpreted. 0 disables the memo.
	MemoSize int

	// Refresh is the mean time between two polls for changes. 0 means DefaultRefresh. A negative value
	// disables background polls; Policy.Refresh still polls.
	Refresh time.Duration

	// MaxIdentities bounds the cached API keys and users. 0 means DefaultIdentities. Unknown keys have a
	// bound of their own, MaxUnknown.
	MaxIdentities int

	// DisableMigration leaves the tables to the operator, who runs schema.sql.
	DisableMigration bool

	// OnApplied is called after each successful poll. Nil calls nothing. applied is a database snapshot that
	// shows the applied changes and no later changes. log is the oid of the table rate_limit_changes.
	// problems has a text for each rule that cannot be used, and for others. The next poll waits for
	// OnApplied. See registry.Node.SetApplied.
	OnApplied func(applied, log string, problems []string)

	// Anonymous has the tiers of requests without an API key that pass by choice, as keys. A tier that no
	// rule in force limits or exempts is a problem. Nil has none.
	Anonymous *sync.Map

	// Health is the health of the server. The policy and the store share it. Required.
	Health *health.Health

	// Now replaces this machine's clock, for tests.
	Now func() time.Time

	// Random returns numbers from 0 to 1. It replaces math/rand in a simulation.
	Random func() float64

	// OnError is called with failures in the background, and with the rules that cannot be used. A repeated
	// failure is reported once. OnError must not block. Nil ignores failures.
	OnError func(error)
}

const (
	// DefaultRefresh is the default of Settings.Refresh. With this value a change takes effect within a
	// second, at the cost of two cheap statements per second.
	DefaultRefresh = 500 * time.Millisecond

	// refreshTimeout bounds a poll, and the statement that reads the banned API keys.
	refreshTimeout = 2 * time.Second
	// loadTimeout bounds a statement that reads rules or bans.
	loadTimeout = 30 * time.Second
	// lockedPause is the time between two polls while another session migrates.
	lockedPause = 50 * time.Millisecond
	// fullReadInterval is the mean time between two reads of all rules and bans without a reported change.
	// The time varies randomly by up to half, to spread the reads of the proxies.
	fullReadInterval = 10 * time.Minute
	// renewMicros is the age in microseconds at which a cached identity is looked up again.
	renewMicros = int64(time.Minute / time.Microsecond)
	// forgetInterval is the minimum time between two deletions of old changes. A deletion removes up to
	// 10,000 changes.
	forgetInterval = time.Minute
)

// Stats holds counts of a Policy.
type Stats struct {
	Rules      int   // rules that have an effect
	Unusable   int   // rules and overrides that cannot be used
	Identities int   // cached API keys and users
	Lookups    int64 // statements that looked up API keys and users
	Applied    int64 // the highest number of an applied change

	// Polled is the end of the last successful poll. The zero time means that there was none.
	Polled time.Time
}

// ErrVersion means that this program cannot use the tables, because another version made them.
var ErrVersion = schema.ErrVersion

// Policy evaluates the rules in a database. A change of the rules takes effect within about Settings.Refresh.
// A Policy is safe for concurrent use.
type Policy struct {
	// CountingTokens is the number of rules in force with limits of tokens. It is atomic.
	CountingTokens int32

	db         pgdb.DB
	settings   Settings
	lookups    *lookups
	identities *IdentityCache
	inForce    atomic.Value    // a *Snapshot, once there are rules
	ready      context.Context // ends when inForce is set or the policy is closed
	setReady   context.CancelFunc
	closing    context.Context
	close      context.CancelFunc
	started    sync.Once
	creation   *health.Creation // of the tables, until the first rules

	refreshing sync.Mutex // locked during a refresh; guards the fields below, except stats
	head       head       // of the last poll; the next poll finds the changes since then
	due        changes    // the changes that have no effect yet
	polled     bool       // a poll has succeeded; from then on, missing tables are not created again
	tables     schema.Preparation
	rows       policyRows
	compiled   *Snapshot // of rows; refresh stores it in inForce after it has evicted the changed identities
	rulesSQL   string
	fullReadAt time.Time // the time of the next full read
	forgotAt   time.Time
	reported   map[string]string // the last error text of each kind of failure

	stats atomic.Value // a *Stats with Polled and Applied
}

// policyRows holds the rules and bans as the database returned them.
type policyRows struct {
	rules      [][]byte
	bans       [][]byte // of networks and users
	bannedKeys [][]byte // banned API keys
}

// New returns a Policy on db. It sends nothing yet, and never closes db.
func New(db pgdb.DB, s Settings) *Policy {
	if s.Refresh == 0 {
		s.Refresh = DefaultRefresh
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	if s.Anonymous == nil {
		s.Anonymous = &sync.Map{}
	}
	if s.Random == nil {
		s.Random = rand.Float64
	}
	p := &Policy{
		db: db, settings: s, identities: NewIdentityCache(s.MaxIdentities), rulesSQL: effectiveRulesSQL,
		reported: map[string]string{}, compiled: Compile(nil, nil, nil, 0), creation: &health.Creation{},
	}
	p.stats.Store(&Stats{})
	p.closing, p.close = context.WithCancel(context.Background())
	p.lookups = &lookups{
		db: db, cache: p.identities, health: s.Health, now: s.Now, closing: p.closing,
		renewals: map[Credential]bool{}, bySender: map[Credential]*lookup{},
		perNetwork: map[netip.Prefix]int{},
	}
	p.ready, p.setReady = context.WithCancel(p.closing)
	return p
}

// Prepare starts the polls in the background. The first request would otherwise wait for the first poll.
func (p *Policy) Prepare() {
	p.started.Do(func() {
		if p.settings.Refresh > 0 {
			go p.poll()
		}
	})
}

// Close ends the polls. Later evaluations that need the database return ratelimit.ErrClosed.
func (p *Policy) Close() { p.close() }

// Stats returns the current counts.
func (p *Policy) Stats() Stats {
	stats := *p.stats.Load().(*Stats)
	if s := p.snapshot(); s != nil {
		stats.Rules = s.Rules()
		stats.Unusable = len(s.set.unusable)
	}
	stats.Identities, _ = p.identities.Len()
	stats.Lookups, _ = p.lookups.state()
	return stats
}

// snapshot returns the snapshot in force, or nil before the first rules.
func (p *Policy) snapshot() *Snapshot {
	s, _ := p.inForce.Load().(*Snapshot)
	return s
}

// Evaluate sets v to the verdict on a request. The sender is the API key, or if key is "", the user that the
// proxy authenticated. key and user are "" for an anonymous request.
//
// Evaluate waits for the first rules for up to timeout, or longer while their tables are created, and for the
// look-up of an uncached sender until health.MaxTimeouts times timeout are over. A cached sender and a banned
// request need no look-up. The error is
//
//   - ratelimit.ErrUnavailable while the database does not answer, or if too many look-ups wait
//   - ratelimit.ErrOverloaded if the time ended while the database answered other statements
//   - ratelimit.ErrTimeout if the time ended in any other case
//   - ErrVersion if this program cannot use the tables
//   - ratelimit.ErrClosed after Close, or the error of the statement
//
// If a look-up fails, v is the verdict of bans and of the rules that apply to every sender:
//
//   - exempt and block rules without tiers
//   - rules with limits that have neither tiers nor a family, and do not count by user, key or tier
//
// Evaluate returns nil instead of the error if this verdict refuses the request, or if it exempts the request
// and no API key has to be valid: the request has a user, or f.RejectUnknown is false. Before the first rules
// are read, v is empty, or refuses an anonymous request with f.NeedsKey.
func (p *Policy) Evaluate(
	ctx context.Context, timeout time.Duration, key, user string, f *Facts, v *Verdict,
) error {
	s := p.snapshot()
	if s == nil {
		return p.evaluateFirst(ctx, timeout, key, user, f, v)
	}
	now := p.settings.Now()
	var id *Identity
	if key != "" || user != "" {
		credential := Credential{}
		if key == "" {
			credential.User = user
		} else {
			credential.Digest = Digest(key)
		}
		var readAt int64
		id, readAt = FindIdentity(p.identities, credential, now)
		switch {
		case id == nil && strings.HasPrefix(key, KeyPrefix) && !Check(key):
			id = &Identity{Digest: credential.Digest} // the checksum is wrong, so the key does not exist
		case id == nil && !mayBeUser(credential.User):
			id = &Identity{User: user} // not cached
		case id == nil:
			return p.evaluateUnknown(ctx, timeout, credential, key, f, v)
		case now.UnixMicro()-readAt >= renewMicros:
			p.lookups.renew(credential)
		}
	}
	EvaluateIdentity(s, f, id, now, v)
	if s.fault != nil && !v.Refused() {
		return s.fault
	}
	return nil
}

// evaluateFirst waits for the first rules, and then is like Evaluate. A look-up gets the rest of the time,
// unless the tables had to be created.
func (p *Policy) evaluateFirst(
	ctx context.Context, timeout time.Duration, key, user string, f *Facts, v *Verdict,
) error {
	began := time.Now()
	if err := p.waitForRules(ctx, timeout); err != nil {
		Clear(v)
		v.Tier = f.DefaultTier
		if key == "" && user == "" && f.NeedsKey {
			Refuse(v, NoKey)
			err = nil
		}
		return err
	}
	f.Waited = true
	if time.Since(began) <= timeout {
		within, cancel := health.WithDeadline(ctx, began, timeout)
		defer cancel()
		ctx = within
	}
	return p.Evaluate(ctx, timeout, key, user, f, v)
}

// mayBeUser reports whether the database can store a user. A look-up of any other user would fail, together
// with all look-ups in the same statement.
func mayBeUser(user string) bool {
	return len(user) <= ratelimit.MaxKey && utf8.ValidString(user) && strings.IndexByte(user, 0) < 0
}

// evaluateUnknown evaluates the rules for an uncached sender.
func (p *Policy) evaluateUnknown(
	ctx context.Context, timeout time.Duration, credential Credential, key string, f *Facts, v *Verdict,
) error {
	unread := &Identity{Digest: credential.Digest, User: credential.User, unread: true}
	EvaluateIdentity(p.snapshot(), f, unread, p.settings.Now(), v)
	if v.Reason == Banned {
		return nil
	}
	text := ""
	if p.settings.MemoSize > 0 && len(key) <= maxMemoBytes {
		text = strings.Clone(key) // the key may be a part of a long request
	}
	id, err := p.lookups.get(ctx, timeout, credential, text, f.Address)
	switch {
	case err == nil:
		EvaluateIdentity(p.snapshot(), f, id, p.settings.Now(), v)
	case v.Refused() || v.Exempt && (credential.User != "" || !f.RejectUnknown):
		err = nil
	}
	return err
}

// waitForRules waits for the first snapshot, see health.Await. If there is none in time, the server counts as
// silent, so that the request does not wait for the store, too.
func (p *Policy) waitForRules(ctx context.Context, timeout time.Duration) error {
	p.Prepare()
	_, err := p.lookups.state()
	if err == nil {
		err = p.lookups.health.Await(ctx, p.ready, timeout, p.creation)
	}
	if err == nil && p.snapshot() == nil {
		err = ratelimit.ErrClosed
	}
	return err
}

// Recall evaluates a request like p.Evaluate and returns true if its API key is cached. Otherwise it returns
// false and leaves v unchanged, and the caller must call p.Evaluate. Recall finds keys only with
// Settings.MemoSize.
//
// Recall takes fewer steps than p.Evaluate and computes no digest. Without Recall, a request with a cached
// key takes 1.3 times the CPU time in Traefik.
func Recall(p *Policy, key string, f *Facts, v *Verdict) bool {
	c := p.identities
	c.mu.RLock()
	e := c.texts[key]
	c.mu.RUnlock()
	if e == nil {
		return false
	}
	now := p.settings.Now()
	s := p.inForce.Load().(*Snapshot) // p.Evaluate has cached the key, so there is one
	if s.fault != nil || now.UnixMicro()-e.at >= renewMicros {
		return false
	}
	EvaluateIdentity(s, f, e.id, now, v)
	return true
}
