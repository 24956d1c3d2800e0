package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// maxLookupBatch bounds the identities in one statement.
	maxLookupBatch = 1000
	// lookupInterval is the minimum time between the starts of two statements.
	lookupInterval = 5 * time.Millisecond
	// lookupTimeout bounds one statement.
	lookupTimeout = 2 * time.Second
	// maxWaiting bounds the look-ups that wait for a statement.
	maxWaiting = 20000
	// maxPerNetwork bounds the look-ups for one network, see NetworkOf. All look-ups of a network fit into
	// one statement, so a client that sends invented keys delays other clients by at most one statement.
	maxPerNetwork = maxLookupBatch
)

// errTooManyWaiting means that too many look-ups wait, of one network or in total.
var errTooManyWaiting = fmt.Errorf("%w: too many API keys and users wait to be looked up",
	ratelimit.ErrUnavailable)

// lookup is the look-up of one identity. Several callers may share it.
//
// A look-up waits (in lookups.waiting), then it is in flight (owned by the worker), then it is done. If an
// identity was evicted during the flight, the look-up waits again.
type lookup struct {
	credential Credential
	text       string          // see IdentityCache.Add
	network    netip.Prefix    // the client's network (see NetworkOf), or 0.0.0.0/0 for a renewal
	done       context.Context // ends when the look-up is done or the policy is closed
	finish     context.CancelFunc

	// Set before finish is called.
	identity *Identity
	err      error // the error for this sender alone
}

// lookups looks up identities and caches them. A worker sends one statement at a time, for many identities. A
// change of the policy evicts identities from the cache. If that happens while a statement runs, the result
// of the statement may be from before the change, so the worker repeats the look-ups.
type lookups struct {
	db      pgdb.DB
	cache   *IdentityCache
	health  *health.Health
	now     func() time.Time
	closing context.Context // ends when the policy is closed

	mu         sync.Mutex             // guards the fields below
	waiting    []*lookup              // renewals come first, so that a flood of others does not delay them
	renewals   map[Credential]bool    // cached senders for the next renewDue, up to maxLookupBatch
	bySender   map[Credential]*lookup // the look-ups that wait or are in flight
	perNetwork map[netip.Prefix]int   // the number of look-ups among them by network
	working    bool                   // a worker runs
	started    time.Time              // the start of the last statement
	inFlight   bool                   // the last statement has no result yet
	pollErr    error                  // see setPollErr
	sent       int64                  // the number of statements
}

// get looks up the sender of a request and caches it with text (see IdentityCache.Add). It waits as long as
// Health.Patience allows. After the wait or the end of ctx, the look-up continues, so that later requests
// find the identity cached. The error is
//
//   - ratelimit.ErrUnavailable during an outage, and while too many look-ups wait
//   - the error that setPollErr recorded
//   - the error of the statement, or of the look-up of this sender
//   - after the wait ratelimit.ErrOverloaded, or ratelimit.ErrTimeout if the server is or was silent, or the
//     statement in flight has had no result for timeout
//   - ratelimit.ErrClosed, or the cause of the end of ctx (see health.Ended)
func (l *lookups) get(
	ctx context.Context, timeout time.Duration, credential Credential, text string, address netip.Addr,
) (*Identity, error) {
	task, err := l.enter(credential, text, NetworkOf(address))
	if err != nil {
		return nil, err
	}
	// The wait includes the time that the statement in flight has already taken.
	patience := l.health.Patience(timeout)
	err = health.WaitFor(ctx, task.done, patience-l.silence())
	switch {
	case l.closing.Err() != nil:
		return nil, ratelimit.ErrClosed
	case err == nil:
		return task.identity, task.err
	case ctx.Err() != nil:
		return nil, l.health.Ended(ctx)
	}
	return nil, l.health.NoDecision(err, patience > timeout && l.silence() < timeout)
}

// silence returns the time since the start of the statement in flight, or 0.
func (l *lookups) silence() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.inFlight {
		return 0
	}
	return time.Since(l.started)
}

// renew schedules a cached sender for the next renewDue.
func (l *lookups) renew(credential Credential) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.renewals) < maxLookupBatch {
		credential.User = strings.Clone(credential.User) // it may be a part of a long request
		l.renewals[credential] = true
	}
}

// renewDue starts the look-ups of the scheduled senders. It starts them together, because a statement costs
// the database much more than an identity in it.
func (l *lookups) renewDue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	var tasks []*lookup
	for credential := range l.renewals {
		if l.bySender[credential] == nil {
			tasks = append(tasks, l.add(credential, "", netip.PrefixFrom(netip.IPv4Unspecified(), 0)))
		}
	}
	l.renewals = map[Credential]bool{}
	l.waiting = append(tasks, l.waiting...)
}

// enter returns the look-up of a sender. It adds a look-up unless one is waiting or in flight.
func (l *lookups) enter(credential Credential, text string, network netip.Prefix) (*lookup, error) {
	if _, err := l.state(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	task := l.bySender[credential]
	switch {
	case l.closing.Err() != nil:
		return nil, ratelimit.ErrClosed
	case task != nil:
		return task, nil
	case len(l.waiting) >= maxWaiting || l.perNetwork[network] >= maxPerNetwork:
		return nil, errTooManyWaiting
	}
	credential.User = strings.Clone(credential.User) // it may be a part of a long request
	task = l.add(credential, text, network)
	l.waiting = append(l.waiting, task)
	return task, nil
}

// add returns a new look-up, and starts the worker if necessary. The caller adds the look-up to waiting.
func (l *lookups) add(credential Credential, text string, network netip.Prefix) *lookup {
	task := &lookup{credential: credential, text: text, network: network}
	task.done, task.finish = context.WithCancel(l.closing)
	l.bySender[credential] = task
	l.perNetwork[network]++
	if !l.working {
		l.working = true
		go l.run()
	}
	return task
}

// run sends statements until nothing waits or the policy is closed.
func (l *lookups) run() {
	for {
		l.mu.Lock()
		n := len(l.waiting)
		if n > maxLookupBatch {
			n = maxLookupBatch
		}
		if n == 0 || l.closing.Err() != nil {
			l.working = false
			l.mu.Unlock()
			return
		}
		if time.Since(l.started) < lookupInterval {
			l.mu.Unlock()
			time.Sleep(lookupInterval)
			continue
		}
		flight := append([]*lookup(nil), l.waiting[:n]...)
		l.waiting = append([]*lookup(nil), l.waiting[n:]...)
		l.started = time.Now()
		l.inFlight = true
		l.sent++
		l.mu.Unlock()

		generation := l.cache.Generation()
		sent := time.Now()
		err := batch.Try(func() error { return readIdentities(l.db, flight) })
		if err == nil {
			l.health.Answered()
		} else if errors.Is(err, ratelimit.ErrUnavailable) {
			_ = l.health.Failed(sent, lookupTimeout, err)
		}
		l.finish(flight, err, generation)
	}
}

// finish handles the result of a statement. generation is the cache's Generation from before the statement.
func (l *lookups) finish(flight []*lookup, err error, generation uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight = false
	if err != nil && errors.Is(err, ratelimit.ErrUnavailable) {
		// The waiting look-ups would fail too, one timeout later.
		flight = append(flight, l.waiting...)
		l.waiting = nil
	}
	now := l.now()
	var repeated []*lookup
	for _, task := range flight {
		if err != nil {
			task.err = err
		}
		if task.err == nil && !l.cache.Add(task.identity, task.text, generation, now) {
			repeated = append(repeated, task)
			continue
		}
		delete(l.bySender, task.credential)
		l.perNetwork[task.network]--
		if l.perNetwork[task.network] == 0 {
			delete(l.perNetwork, task.network)
		}
		task.finish()
	}
	l.waiting = append(repeated, l.waiting...)
}

// setPollErr records the error of the last poll that reached the database, or nil. All look-ups fail with
// this error.
func (l *lookups) setPollErr(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pollErr = err
}

// state returns the number of statements, and the error with which all look-ups fail now, or nil.
func (l *lookups) state() (sent int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sent = l.sent
	err = l.health.Unavailable()
	if err == nil {
		err = l.pollErr
	}
	return sent, err
}
