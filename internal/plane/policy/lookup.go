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
	// lookUpMost bounds the identities of one statement.
	lookUpMost = 1000
	// lookUpInterval is the least time from the start of a statement to that of the next.
	lookUpInterval = 5 * time.Millisecond
	// lookUpTimeout is for one statement.
	lookUpTimeout = 2 * time.Second
	// waitingMost bounds the look-ups that callers wait for.
	waitingMost = 20000
	// crowdMost bounds the first look-ups for the clients of one network, see NetworkOf. So many fit
	// into one statement, so that a client that sends invented keys delays the others by one
	// statement at most.
	crowdMost = lookUpMost
	// staleMost bounds the repetitions of a look-up because the identity changed during it. After that the
	// last answer counts, and is not cached.
	staleMost = 3
)

// errCrowded is for a look-up that finds too many others waiting, of its network or in total.
var errCrowded = fmt.Errorf("%w: too many API keys and users wait to be looked up", ratelimit.ErrUnavailable)

// lookup is an identity that is looked up, perhaps for several callers.
//
// States: waiting (in lookups.waiting), in flight (with the worker), done.
type lookup struct {
	sender   Credential
	text     string          // see Identities.Add
	first    bool            // the sender is not remembered, and the look-up is in a crowd
	network  netip.Prefix    // of the client, if first; see NetworkOf
	done     context.Context // ends when the look-up is done
	finish   context.CancelFunc
	attempts int // only the worker uses it

	// Set before finish is called.
	identity *Identity
	err      error // only of this sender
}

// lookups looks identities up and caches them. It sends one statement at a time, for many
// identities. If an identity is evicted from the cache during a statement, the answer may have
// the state from before the change: the identity is looked up again.
type lookups struct {
	db     pgdb.DB
	cache  *Identities
	health *health.Health
	now    func() time.Time

	mu       sync.Mutex             // guards all that follows
	waiting  []*lookup              // renewals come first: a flood of others must not delay them
	due      map[Credential]bool    // remembered senders, up to lookUpMost, for the next renewDue
	bySender map[Credential]*lookup // those that wait or are in flight
	crowds   map[netip.Prefix]int   // how many of them are first, by network
	working  bool                   // a worker runs
	started  time.Time              // the last statement
	flying   bool                   // it is under way
	failed   error                  // see setFailed
	closed   bool
	sent     int64 // statements
}

func newLookups(db pgdb.DB, cache *Identities, h *health.Health, now func() time.Time) *lookups {
	return &lookups{
		db: db, cache: cache, health: h, now: now,
		due: make(map[Credential]bool), bySender: make(map[Credential]*lookup),
		crowds: make(map[netip.Prefix]int),
	}
}

// get looks up the sender of a request from an address, as long as health.Patience allows, and caches it with
// text (see Identities.Add). The error is ratelimit.ErrUnavailable while the database does not answer or too
// many wait, else that of health.NoDecision: a database is silent if a statement is under way for a timeout.
// The look-up then goes on, for the next request.
func (l *lookups) get(
	ctx context.Context, timeout time.Duration, s Credential, text string, address netip.Addr,
) (*Identity, error) {
	call, err := l.enter(s, text, NetworkOf(address))
	if err != nil {
		return nil, err
	}
	// A statement that is under way for so long already is not waited for.
	err = waitFor(ctx, call.done, health.Patience(timeout, l.health.Silent())-l.silence())
	switch {
	case err == nil:
		return call.identity, call.err
	case ctx.Err() != nil:
		return nil, l.health.Ended(ctx)
	}
	return nil, l.health.NoDecision(err, l.silence() < timeout)
}

// silence returns the time since the statement under way began, or 0.
func (l *lookups) silence() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.flying {
		return 0
	}
	return time.Since(l.started)
}

// waitFor waits until done ends. The interpreter allows no select here, see internal/testkit/imports.
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

// renew lets the next renewDue look up a sender that is remembered.
func (l *lookups) renew(s Credential) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.due) < lookUpMost {
		s.User = strings.Clone(s.User) // it may be a part of a long request
		l.due[s] = true
	}
}

// renewDue looks up the senders that are due, for later requests. A statement costs the database much more
// than an identity in it, so they wait for each other.
func (l *lookups) renewDue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	var calls []*lookup
	for s := range l.due {
		if l.bySender[s] == nil {
			calls = append(calls, l.add(&lookup{sender: s}))
		}
	}
	l.due = make(map[Credential]bool)
	l.waiting = append(calls, l.waiting...)
}

// enter adds a sender to those that wait, unless the sender waits already or is in flight.
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
	case len(l.waiting) >= waitingMost || l.crowds[network] >= crowdMost:
		return nil, errCrowded
	}
	s.User = strings.Clone(s.User) // it may be a part of a long request
	call = l.add(&lookup{sender: s, text: text, first: true, network: network})
	l.crowds[network]++
	l.waiting = append(l.waiting, call)
	return call, nil
}

// add prepares a call that the caller adds to waiting, and starts the worker. It returns the call.
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
		if n > lookUpMost {
			n = lookUpMost
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
		l.flying = true
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
		l.land(flight, err, generation)
	}
}

// land handles the answer of a statement that began at a generation of the cache.
func (l *lookups) land(flight []*lookup, err error, generation uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flying = false
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
		if isStale && call.attempts <= staleMost && !l.closed {
			again = append(again, call)
		} else {
			l.end(call)
		}
	}
	l.waiting = append(again, l.waiting...)
}

// end removes a look-up that is done, and wakes its callers.
func (l *lookups) end(call *lookup) {
	delete(l.bySender, call.sender)
	if call.first {
		l.crowds[call.network]--
		if l.crowds[call.network] == 0 {
			delete(l.crowds, call.network)
		}
	}
	call.finish()
}

// setFailed records the error of the last poll, although the database answered, or nil.
func (l *lookups) setFailed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = err
}

// state returns how many statements were sent, and the error of all look-ups, or nil.
func (l *lookups) state() (sent int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sent = l.sent
	err = l.health.Unavailable()
	if err == nil {
		err = l.failed
	}
	return sent, err
}

// close fails the look-ups that wait, and all later ones.
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
