package pg

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// maxAttempts bounds the attempts of Run. Every attempt before the last certainly had no effect.
	maxAttempts = 4

	// maxLost is the number of losses of prepared statements after which a driver stops preparing statements.
	maxLost = 2
)

// StatementName returns the name under which drivers prepare a statement. The name depends only on the text.
// Behind a pooler, a statement of another session with the same name therefore has the same text.
func StatementName(sql string) string {
	sum := sha256.Sum256([]byte(sql))
	return "pgrl_" + hex.EncodeToString(sum[:12])
}

// Attempt is one attempt of a driver to run statements, and its outcome.
type Attempt struct {
	Unnamed bool // the attempt prepares no statements; an attempt sets it for the next attempt

	Retry []*pgdb.Statement // whole transactions that had no effect and may be sent again
	Close bool              // the connection must be closed
	Err   error             // the error of the connection; nil if each statement has its own result

	// GivenUp is not nil if the server may still run statements after the attempt. The driver sets it to a
	// channel that it closes when the session has ended.
	GivenUp <-chan struct{}

	lost    bool // the server lacked prepared statements of the connection
	notSent bool // there was no connection
}

// Runner has the state of Run for all calls of a driver.
type Runner struct {
	Lost int32 // the number of losses of prepared statements; atomic
	half int   // the number of sessions that may run Synchronous statements

	mu      sync.Mutex  // guards the fields below
	running int         // the number of sessions that run Synchronous statements
	waiters []chan bool // the calls that wait to run some, oldest first
}

// NewRunner returns the Runner of a driver with a number of connections.
func NewRunner(connections int) *Runner {
	half := connections / 2
	if half < 1 {
		half = 1
	}
	return &Runner{half: half}
}

// ServerError is an error that a server has reported. An error that has ended the connection without a report
// has only Err.
type ServerError struct {
	Severity, Code, Message, Routine string
	Err                              error // the error for callers of the driver
}

// EndsConnection reports whether the connection has ended with the error.
func (e *ServerError) EndsConnection() bool {
	return e.Code == "" || e.Severity == "FATAL" || e.Severity == "PANIC"
}

// ErrBusy is wrapped by the error of a driver that got no connection in time because others used all of them.
var ErrBusy = errors.New("busy")

// Run implements pgdb.DB.Run for drivers. It calls try with the statements, and again with those that may be
// sent again. Synchronous statements first wait, for up to timeout, until fewer than half of the connections
// run others.
func Run(ctx context.Context, timeout time.Duration, r *Runner, statements []*pgdb.Statement,
	try func(statements []*pgdb.Statement, a *Attempt)) error {
	synchronous := Synchronous(statements)
	if synchronous {
		if err := r.enter(ctx, timeout); err != nil {
			setFailed(statements, err, "")
			return NotSent(ctx, err)
		}
	}
	left := statements
	a := &Attempt{Unnamed: atomic.LoadInt32(&r.Lost) >= maxLost}
	for n := 1; len(left) > 0; n++ {
		try(left, a)
		if a.lost {
			atomic.AddInt32(&r.Lost, 1)
		}
		if n == maxAttempts || len(a.Retry) == 0 || ctx.Err() != nil {
			break
		}
		left = a.Retry
		a = &Attempt{Unnamed: a.Unnamed}
	}
	if synchronous {
		r.leave(a.GivenUp)
	}
	if a.notSent && len(left) == len(statements) { // else some have taken effect in an earlier attempt
		return NotSent(ctx, a.Err)
	}
	return Outcome(ctx, a.Err)
}

// Synchronous reports whether one of statements is Synchronous.
func Synchronous(statements []*pgdb.Statement) bool {
	for _, s := range statements {
		if s.Synchronous {
			return true
		}
	}
	return false
}

// enter waits until another session may run Synchronous statements. It has no select, because in Yaegi all
// goroutines share the cases of a select.
func (r *Runner) enter(ctx context.Context, timeout time.Duration) error {
	r.mu.Lock()
	if r.running < r.half {
		r.running++
		r.mu.Unlock()
		return nil
	}
	w := make(chan bool, 1)
	r.waiters = append(r.waiters, w)
	r.mu.Unlock()
	limited, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	cancel := context.AfterFunc(limited, func() { r.giveUp(w) })
	entered := <-w
	cancel()
	if entered {
		return nil
	}
	return fmt.Errorf("%w: none of the %d connections for commits that wait for a standby became free: %w",
		ErrBusy, r.half, limited.Err())
}

// giveUp ends the wait of a call, unless it has ended.
func (r *Runner) giveUp(waiter chan bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.waiters {
		if r.waiters[i] == waiter {
			r.waiters = append(r.waiters[:i], r.waiters[i+1:]...)
			waiter <- false
			return
		}
	}
}

// leave ends an enter, when the session has ended if a call has given it up.
func (r *Runner) leave(givenUp <-chan struct{}) {
	if givenUp != nil {
		go func() {
			<-givenUp
			r.leave(nil)
		}()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiters) == 0 {
		r.running--
		return
	}
	w := r.waiters[0]
	r.waiters = r.waiters[1:]
	w <- true
}

// Outcome returns the error of a driver's call for err, with which its connection failed, or nil for nil.
func Outcome(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: %w", pgdb.ErrNoAnswer, err)
	}
	return fmt.Errorf("%w: %w", pgdb.ErrConnectionLost, err)
}

// NotSent returns the error of a driver's call that got no connection because of err.
func NotSent(ctx context.Context, err error) error {
	if !errors.Is(err, ErrBusy) {
		err = Outcome(ctx, err)
	}
	return fmt.Errorf("%w: %w", pgdb.ErrNotSent, err)
}

// SendGuarded calls send with statements. uses is the number of times that the connection may be used without
// a guard. If uses is 0 or the first statement is Unnamed, SendGuarded puts a guard before each transaction.
// It returns the new value of uses.
func (a *Attempt) SendGuarded(uses int, statements []*pgdb.Statement, send func([]*pgdb.Statement)) int {
	if uses > 0 && !statements[0].Unnamed {
		send(statements)
		return uses - 1
	}
	guarded := Guard(statements, uses > 0)
	send(guarded)
	a.Retry = withoutGuard(a.Retry)
	checked, err := ReadGuards(guarded)
	if err != nil {
		a.ConnectionFailed(statements, false, &ServerError{Err: err})
		a.Close = true
	}
	if uses == 0 {
		return checked
	}
	return uses
}

// TransactionFailed handles an error of the server on the statement i of a transaction. named reports whether
// the statement is prepared, and confirmed whether the server had confirmed that before this attempt. An
// error of a guard is that of the first statement after the guard, because callers do not see guards.
func (a *Attempt) TransactionFailed(transaction []*pgdb.Statement, i int, e *ServerError,
	named, confirmed bool) {
	setFailed(transaction, pgdb.ErrRolledBack, "")
	if IsRowSecurity(e.Code, e.Message) {
		e.Err = fmt.Errorf("%w: %s", e.Err, RowSecurityHint)
	}
	for i < len(transaction)-1 && isGuard(transaction[i]) {
		i++
	}
	setFailed(transaction[i:i+1], e.Err, e.Code)
	missing := named && isLostStatement(e.Code)
	// If its Parse failed earlier in this pipeline, the statement is missing but not lost.
	lost := missing && (confirmed || e.Code == DuplicateStatement)
	stale := named && isStalePlan(e)
	if missing || stale {
		a.Retry = append(a.Retry, transaction...)
	}
	// If a statement is lost or stale, the session's prepared statements differ from the driver's.
	a.Close = a.Close || lost || stale || ClosesConnection(e.Code)
	a.lost = a.lost || lost
	a.Unnamed = a.Unnamed || lost || stale
}

// ConnectionEnded handles an error with which the connection has ended. left has the statements of the
// transactions without a full answer. For answered and started, see began.
func (a *Attempt) ConnectionEnded(left []*pgdb.Statement, answered int, started bool, e *ServerError) {
	retry := false
	if !began(left, answered, started) {
		lost := isLostByPooler(e)
		a.lost = a.lost || lost
		a.Unnamed = a.Unnamed || lost
		retry = lost || EndsSession(e.Code)
	}
	a.ConnectionFailed(left, retry, e)
}

// ConnectionFailed handles an error that ends the connection. left has the statements of the transactions
// without a full answer. retry reports whether all of them certainly had no effect. If not, Run sends nothing
// again, so that the caller gets the error.
func (a *Attempt) ConnectionFailed(left []*pgdb.Statement, retry bool, e *ServerError) {
	setFailed(left, e.Err, e.Code)
	a.Err = e.Err
	if retry {
		a.Retry = append(a.Retry, left...)
	} else {
		a.Retry = nil
	}
}

// NotSent handles an error that left the driver without a connection.
func (a *Attempt) NotSent(statements []*pgdb.Statement, e *ServerError) {
	a.Err = LoginError(e.Err, e.Code, e.Message)
	setFailed(statements, a.Err, e.Code)
	a.notSent = true
}

// setFailed sets the error and the SQLSTATE of statements.
func setFailed(statements []*pgdb.Statement, err error, code string) {
	for _, s := range statements {
		s.Err = err
		s.Code = code
	}
}

// Transaction returns the index of the first statement in the transaction of statement i, and the index after
// its last.
func Transaction(statements []*pgdb.Statement, i int) (first, end int) {
	first = i
	for first > 0 && statements[first-1].Joined {
		first--
	}
	end = i + 1
	for end < len(statements) && statements[end-1].Joined {
		end++
	}
	return first, end
}
