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
	// maxLookUpBatch bounds the identities of one statement.
	maxLookUpBatch = 1000
	// lookUpInterval is the minimum time between the starts of two statements.
	lookUpInterval = 5 * time.Millisecond
	// lookUpTimeout bounds one statement.
	lookUpTimeout = 2 * time.Second
	// maxWaiting bounds the look-ups that wait for a statement.
	maxWaiting = 20000
	// maxPerNetwork bounds the look-ups of uncached senders for the clients of one network, see NetworkOf.
	// They fit into one statement, so a client that sends invented keys delays the others by at most one
	// statement.
	maxPerNetwork = maxLookUpBatch
	// maxStaleRetries bounds the retries of a look-up during which an identity changed. The last answer is
	// then used and not cached.
	maxStaleRetries = 3
)

// errTooManyWaiting is the error of a look-up if too many others wait, of its network or in total.
var errTooManyWaiting = fmt.Errorf("%w: too many API keys and users wait to be looked up",
	ratelimit.ErrUnavailable)

// lookup is the look-up of one identity, which several callers may share.
//
// Its states are waiting (in lookups.waiting), in flight (owned by the worker) and done. The worker moves it
// from waiting to in flight, and then to done, or back to waiting if an identity was evicted meanwhile.
type lookup struct {
	sender   Credential
	text     string          // see Identities.Add
	uncached bool            // counted in lookups.perNetwork; false for a renewal
	network  netip.Prefix    // the client's, if uncached; see NetworkOf
	done     context.Context // ends when the look-up is done
	finish   context.CancelFunc
	attempts int // only the worker uses it

	// Set before finish is called.
	identity *Identity
	err      error // of this sender alone
}

// lookups looks up identities and caches them. A worker sends one statement at a time, for many identities.
// If the cache evicts an identity during a statement, the answer may be older than the change. The worker
// then looks up the identities of the statement again.
type lookups struct {
	db     pgdb.DB
	cache  *Identities
	health *health.Health
	now    func() time.Time

	mu         sync.Mutex             // guards all that follows
	waiting    []*lookup              // renewals first, so that a flood of others does not delay them
	renewals   map[Credential]bool    // cached senders for the next renewDue, up to maxLookUpBatch
	bySender   map[Credential]*lookup // the look-ups that wait or are in flight
	perNetwork map[netip.Prefix]int   // the number of uncached ones among them
	working    bool                   // a worker runs
	started    time.Time              // the start of the last statement
	inFlight   bool                   // that statement has no answer yet
	pollErr    error                  // see setPollErr
	closed     bool
	sent       int64 // the number of statements
}

func newLookups(db pgdb.DB, cache *Identities, h *health.Health, now func() time.Time) *lookups {
	return &lookups{
		db: db, cache: cache, health: h, now: now,
		renewals: make(map[Credential]bool), bySender: make(map[Credential]*lookup),
		perNetwork: make(map[netip.Prefix]int),
	}
}

// get looks up the sender of a request and caches it with text (see Identities.Add). It waits as long as
// health.Patience allows. The error is ratelimit.ErrUnavailable while the database does not answer or too
// many look-ups wait, else that of health.NoDecision. The database counts as silent if a statement has had no
// answer for timeout. After an error the look-up continues, for the next request.
func (l *lookups) get(
	ctx context.Context, timeout time.Duration, s Credential, text string, address netip.Addr,
) (*Identity, error) {
	call, err := l.enter(s, text, NetworkOf(address))
	if err != nil {
		return nil, err
	}
	// The time that the statement in flight has already taken counts.
	err = waitFor(ctx, call.done, health.Patience(timeout, l.health.Silent())-l.silence())
	switch {
	case err == nil:
		return call.identity, call.err
	case ctx.Err() != nil:
		return nil, l.health.Ended(ctx)
	}
	return nil, l.health.NoDecision(err, l.silence() < timeout)
}

// silence returns the time since the statement in flight began, or 0.
func (l *lookups) silence() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.inFlight {
		return 0
	}
	return time.Since(l.started)
}

// waitFor waits until done ends. It has no select because of the interpreter: see internal/testkit/imports.
func waitFor(ctx, done context.Context, timeout time.Duration) error {
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stop := context.AfterFunc(done, cancel)
	defer stop()
	<-within.Done()
	if done.Err() != nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return ratelimit.ErrTimeout
}

// renew schedules a cached sender for the next renewDue.
func (l *lookups) renew(s Credential) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.renewals) < maxLookUpBatch {
		s.User = strings.Clone(s.User) // it may be a part of a long request
		l.renewals[s] = true
	}
}

// renewDue looks up the scheduled senders, for later requests. It looks them up together, because a statement
// costs the database much more than an identity in it.
func (l *lookups) renewDue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	var calls []*lookup
	for s := range l.renewals {
		if l.bySender[s] == nil {
			calls = append(calls, l.add(&lookup{sender: s}))
		}
	}
	l.renewals = make(map[Credential]bool)
	l.waiting = append(calls, l.waiting...)
}

// enter returns the look-up of a sender. It adds a new one unless one waits or is in flight.
func (l *lookups) enter(s Credential, text string, network netip.Prefix) (*lookup, error) {
	if _, err := l.state(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	call := l.bySender[s]
	switch {
	case l.closed:
		return nil, ratelimit.ErrClosed
	case call != nil:
		return call, nil
	case len(l.waiting) >= maxWaiting || l.perNetwork[network] >= maxPerNetwork:
		return nil, errTooManyWaiting
	}
	s.User = strings.Clone(s.User) // it may be a part of a long request
	call = l.add(&lookup{sender: s, text: text, uncached: true, network: network})
	l.perNetwork[network]++
	l.waiting = append(l.waiting, call)
	return call, nil
}

// add prepares a look-up that the caller adds to waiting, starts the worker, and returns the look-up.
func (l *lookups) add(call *lookup) *lookup {
	call.done, call.finish = context.WithCancel(context.Background())
	l.bySender[call.sender] = call
	if !l.working {
		l.working = true
		go l.work()
	}
	return call
}

// work sends statements until nothing waits.
func (l *lookups) work() {
	for {
		l.mu.Lock()
		n := len(l.waiting)
		if n > maxLookUpBatch {
			n = maxLookUpBatch
		}
		if n == 0 {
			l.working = false
			l.mu.Unlock()
			return
		}
		if time.Since(l.started) < lookUpInterval {
			l.mu.Unlock()
			time.Sleep(lookUpInterval)
			continue
		}
		flight := append([]*lookup(nil), l.waiting[:n]...)
		l.waiting = append([]*lookup(nil), l.waiting[n:]...)
		l.started = time.Now()
		l.inFlight = true
		l.sent++
		l.mu.Unlock()

		generation := l.cache.Generation()
		begin := l.health.Begin()
		var err error
		if failure := batch.PanicError(func() { err = lookUp(l.db, flight) }); failure != nil {
			err = failure
		}
		if err == nil {
			l.health.Answered()
		} else if errors.Is(err, ratelimit.ErrUnavailable) {
			_ = l.health.Failed(begin, lookUpTimeout, err)
		}
		l.finish(flight, err, generation)
	}
}

// finish handles the answer of a statement. generation is that of the cache when the statement began.
func (l *lookups) finish(flight []*lookup, err error, generation uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight = false
	if err != nil && errors.Is(err, ratelimit.ErrUnavailable) && !l.closed {
		// The waiting look-ups would fail as well, one timeout later.
		flight = append(flight, l.waiting...)
		l.waiting = nil
	}
	now := l.now()
	var again []*lookup
	for _, call := range flight {
		if err != nil {
			call.err = err
		}
		call.attempts++
		isStale := call.err == nil && !l.cache.Add(call.identity, call.text, generation, now)
		if isStale && call.attempts <= maxStaleRetries && !l.closed {
			again = append(again, call)
		} else {
			l.end(call)
		}
	}
	l.waiting = append(again, l.waiting...)
}

// end removes a look-up that is done and wakes its callers.
func (l *lookups) end(call *lookup) {
	delete(l.bySender, call.sender)
	if call.uncached {
		l.perNetwork[call.network]--
		if l.perNetwork[call.network] == 0 {
			delete(l.perNetwork, call.network)
		}
	}
	call.finish()
}

// setPollErr records the error with which the database answered the last poll, or nil. All look-ups fail with
// it.
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

// close fails the waiting look-ups and all later ones.
func (l *lookups) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, call := range l.waiting {
		call.err = ratelimit.ErrClosed
		l.end(call)
	}
	l.waiting = nil
}
