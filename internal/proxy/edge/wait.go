package edge

import (
	"context"
	"errors"
	"math/rand"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Wait lets requests that a limit refuses wait for their turn. The requests of a key form a line. Only the
// first in line asks the store: after RetryAfter, or on a limit InFlight when a request of this process
// ends, and each askInterval, because those of other processes end too.
type Wait struct {
	UpTo time.Duration
	Most int // how many requests may wait for the limit in this process

	line *lines // nil before Open
}

const (
	// askInterval is the time between two questions of the first in line on a limit InFlight. A random part of up to a
	// fifth is added, so that processes do not ask at the same moment.
	askInterval = 100 * time.Millisecond
	defaultMost = 1000
	longestWait = 10 * time.Minute
	// untriedWait is for Retry-After of a refusal without a question: when the key's turn comes is not known.
	untriedWait = time.Second
	mostWaiting = 100000
	wantWait    = "up to a duration from 1ms to 10m, as in up to 2s, and perhaps how many may wait, from 1 to 100000, as in up to 2s at most 100"
)

// lines are those of a prefix in this process.
type lines struct {
	users int // handlers; guarded by the mutex of allLines

	mu      sync.Mutex // guards all that follows, and the turns
	turns   map[string][]*turn
	waiting int
}

// turn is the place of a request in a line.
type turn struct {
	came  time.Time
	wake  context.CancelFunc // ends waitFor of the request
	woken bool               // before waitFor
}

// allLines are the lines of open handlers by prefix.
var allLines = struct {
	mu       sync.Mutex
	byPrefix map[string]*lines
}{byPrefix: map[string]*lines{}}

// readWait is the Read of the setting wait.
func readWait(to *Settings, text string) error {
	if text == "" {
		return nil
	}
	words := strings.Fields(text)
	if len(words) != 3 && len(words) != 6 || words[0] != "up" || words[1] != "to" {
		return errWant
	}
	w := &Wait{Most: defaultMost}
	var err error
	if w.UpTo, err = ratelimit.ParseWindow(words[2]); err != nil || w.UpTo < time.Millisecond || w.UpTo > longestWait {
		return errWant
	}
	if len(words) == 6 {
		if w.Most, err = strconv.Atoi(words[5]); err != nil || words[3] != "at" || words[4] != "most" || w.Most < 1 || w.Most > mostWaiting {
			return errWant
		}
	}
	to.Limit.Wait = w
	return nil
}

// Open gives requests their lines, which are those of all handlers that have opened the prefix, until close is called. It
// comes before the first request.
func (w *Wait) Open(prefix string) (close func()) {
	allLines.mu.Lock()
	defer allLines.mu.Unlock()
	l := allLines.byPrefix[prefix]
	if l == nil {
		l = &lines{turns: map[string][]*turn{}}
		allLines.byPrefix[prefix] = l
	}
	l.users++
	w.line = l
	return func() {
		allLines.mu.Lock()
		defer allLines.mu.Unlock()
		l.users--
		if l.users == 0 {
			delete(allLines.byPrefix, prefix) // requests that wait in them go on
		}
	}
}

// TakeInTurn is Take for a request that may wait: for the hits of its Set as Set.Waits says. The context of its Flight ends
// when the client has gone.
func (d *Decider) TakeInTurn(q *Request) Outcome {
	ctx := q.Flight.Context
	began := time.Now()
	var outcome Outcome
	at := firstLine(q)
	if at < 0 {
		outcome = d.Take(q)
		later := *d
		later.Began = time.Time{}
		d = &later
		if at = outcome.waits(q, began); at < 0 {
			at = d.late(&outcome, q)
		}
		if at < 0 {
			return outcome
		}
	}
	w := q.Set.Waits[at]
	key := strings.Clone(q.Hits[at].Key) // it may be a part of a long request
	t := w.join(key, began)
	if t == nil {
		return d.withoutTurn(&outcome, q, at)
	}
	defer w.leave(key, t)
	for {
		left := w.UpTo - time.Since(began)
		if left <= 0 || ctx.Err() != nil {
			return unasked(&outcome, q, at)
		}
		if !w.isFirst(key, t) {
			w.waitFor(ctx, t, left)
			continue
		}
		outcome = d.askAgain(q)
		if at = outcome.waits(q, began); at < 0 {
			return outcome
		}
		wait := q.Decisions[at].RetryAfter
		if q.Hits[at].Limit.Algorithm == ratelimit.InFlight {
			wait = askInterval
		}
		wait += time.Duration(rand.Int63n(int64(wait)/5 + 1))
		if wait > left {
			wait = left
		}
		w.waitFor(ctx, t, wait)
	}
}

// late is the index of the first hit for which a request may wait, if its decision came too late while the database
// answers: many ask at once then. In the line, one asks after the other. Else it is -1.
func (d *Decider) late(o *Outcome, q *Request) int {
	if !errors.Is(o.Err, ratelimit.ErrTimeout) && !errors.Is(o.Err, ratelimit.ErrOverloaded) || Unavailable(d.Store) != nil {
		return -1
	}
	for i, w := range q.Set.Waits {
		if w != nil && !q.Hits[i].Apart {
			return i
		}
	}
	return -1
}

// withoutTurn is the outcome of a request for which the line has no room. If others wait for its key, the store has not
// been asked: the request is refused like one that has waited in vain.
func (d *Decider) withoutTurn(last *Outcome, q *Request, at int) Outcome {
	if last.Status == 0 && d.paused() {
		return PausedOutcome()
	}
	if err := Unavailable(d.Store); last.Status == 0 && err != nil {
		return d.TakeLocal(q, err)
	}
	return unasked(last, q, at)
}

// earlierDecision is the decision on a hit from an earlier question.
type earlierDecision struct {
	at       int
	decision ratelimit.Decision
}

// askAgain is Take for a request about which the store may have been asked before. A hit that is Apart and was decided
// then (with a Limit) has been charged, and keeps its decision: it only looks now.
func (d *Decider) askAgain(q *Request) Outcome {
	hits := q.Hits
	decisions := q.Decisions
	var earlier []earlierDecision
	for i := range hits {
		if hits[i].Apart && !hits[i].Peek && decisions[i].Limit > 0 && decisions[i].Source != ratelimit.Undecided {
			earlier = append(earlier, earlierDecision{i, decisions[i]})
			hits[i].Peek = true
		}
	}
	outcome := d.Take(q)
	for _, e := range earlier {
		decisions[e.at] = e.decision
		hits[e.at].Peek = false
	}
	return outcome
}

// unasked is the outcome of a request after its wait: its last one, or if the store was never asked, a refusal by the
// hit for which it has waited.
func unasked(last *Outcome, q *Request, at int) Outcome {
	decisions := q.Decisions
	if last.Status != 0 {
		return *last
	}
	soon := time.Now().Add(untriedWait)
	for i := range decisions {
		d := &decisions[i]
		d.Allowed = i != at
		d.Limit = q.Hits[i].Limit.Capacity()
		d.Reset = soon
		d.Source = ratelimit.Undecided
	}
	decisions[at].RetryAfter = untriedWait
	return Outcome{Status: http.StatusTooManyRequests, Hit: at, Decision: &decisions[at]}
}

// firstLine is the index of the first hit for which others wait, or -1.
func firstLine(q *Request) int {
	for i, w := range q.Set.Waits {
		if w == nil || q.Hits[i].Apart {
			continue
		}
		w.line.mu.Lock()
		n := len(w.line.turns[q.Hits[i].Key])
		w.line.mu.Unlock()
		if n > 0 {
			return i
		}
	}
	return -1
}

// waits is the index of the hit that refused a request which may go on waiting, or -1.
func (o *Outcome) waits(q *Request, began time.Time) int {
	waits := q.Set.Waits
	if o.Status == 0 || o.Decision == nil || o.Decision.Allowed || o.Hit >= len(waits) || waits[o.Hit] == nil {
		return -1
	}
	left := waits[o.Hit].UpTo - time.Since(began)
	soon := o.Decision.RetryAfter <= left || q.Hits[o.Hit].Limit.Algorithm == ratelimit.InFlight // its RetryAfter is a guess
	if left <= 0 || o.Decision.RetryAfter == ratelimit.Never || !soon {
		return -1
	}
	return o.Hit
}

// join puts a request into the line of a key, behind those that came before it, unless too many wait.
func (w *Wait) join(key string, came time.Time) *turn {
	l := w.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting >= w.Most {
		return nil
	}
	t := &turn{came: came}
	l.waiting++
	turns := l.turns[key]
	turns = append(turns, t)
	for i := len(turns) - 1; i > 0 && turns[i-1].came.After(came); i-- { // it was refused later
		turns[i] = turns[i-1]
		turns[i-1] = t
	}
	l.turns[key] = turns
	return t
}

// leave takes a request out of its line. If it was the first, the next is first.
func (w *Wait) leave(key string, t *turn) {
	l := w.line
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting--
	turns := l.turns[key]
	at := 0
	for turns[at] != t {
		at++
	}
	if at == 0 {
		turns[0] = nil
		turns = turns[1:]
	} else {
		turns = append(turns[:at], turns[at+1:]...)
	}
	if len(turns) == 0 {
		delete(l.turns, key)
		return
	}
	l.turns[key] = turns
	if at == 0 {
		turns[0].end()
	}
}

func (w *Wait) isFirst(key string, t *turn) bool {
	w.line.mu.Lock()
	defer w.line.mu.Unlock()
	return w.line.turns[key][0] == t
}

// released has the first in the line of a key ask: a slot is free.
func (w *Wait) released(key string) {
	w.line.mu.Lock()
	defer w.line.mu.Unlock()
	if turns := w.line.turns[key]; len(turns) > 0 {
		turns[0].end()
	}
}

// end ends waitFor of a request, or the next one. The caller holds the mutex.
func (t *turn) end() {
	t.woken = true
	if t.wake != nil {
		t.wake()
	}
}

// waitFor waits for a time, until the turn is ended, or until the client has gone.
func (w *Wait) waitFor(ctx context.Context, t *turn, d time.Duration) {
	waiting, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	w.line.mu.Lock()
	woken := t.woken
	t.wake = cancel
	w.line.mu.Unlock()
	if !woken {
		<-waiting.Done()
	}
	w.line.mu.Lock()
	t.woken = false
	t.wake = nil
	w.line.mu.Unlock()
}
