package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/internal/store/chain"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// server runs statements, and knows whether the database answers. While it does not,
// requests must not wait for their timeouts one after the other: they fail at once, and a
// prober asks the database in the background until it answers.
//
// States: answering (down is nil, probing is false); suspected after a batch that ran out
// of time (down is nil, probing is true); down (down is set, probing is true). A failed
// connection leads to down at once. A failed probe leads from suspected to down. An answer
// to a batch leads from down to suspected, an answer to a probe from any state to answering.
// A failure changes no state if the database has answered another batch meanwhile: then only that connection has
// failed, or there was none for the batch or the probe. See answersOthers.
//
// The time that this process loses, in a queue or without the processor, is no failure: a batch has the timeout from
// when its statements are sent, see pgdb.DB.
type server struct {
	db      pgdb.DB
	closing context.Context // ends when the store is closed
	counts  *counts         // for errors
	// see is called with the result of serverSQL, before requests are decided again after an outage: another server may
	// have taken over.
	see    func(read *pgdb.Statement)
	random func() float64 // rand.Float64, except in a simulation

	// Atomic, so that a batch need not take the mutex.
	isDown   int32 // 1 while down is set
	isSilent int32 // 1 from a failure that changes the state until the next answer
	answers  int64 // how many times the database has answered
	answered int64 // when it did so last: nanoseconds since created

	created time.Time

	mu      sync.Mutex // guards down and probing
	down    error      // what calls return; nil unless the database is down
	probing bool
}

const (
	// fairTime is the least time in which a batch can show that the database does not
	// answer. A batch with less time runs out of it through no fault of the database.
	fairTime = 50 * time.Millisecond

	// firstProbe and longestProbe bound the time between two probes. A random part
	// keeps the proxies from asking at the same moment.
	firstProbe   = 25 * time.Millisecond
	longestProbe = 500 * time.Millisecond

	// leastProbeTime and mostProbeTime bound how long a probe waits for its answer.
	leastProbeTime = 250 * time.Millisecond
	mostProbeTime  = 2 * time.Second
)

// onAnswer notes an answer to a batch.
func (s *server) onAnswer() {
	atomic.StoreInt64(&s.answered, int64(time.Since(s.created)))
	atomic.AddInt64(&s.answers, 1) // last: whoever sees it looks at answered
	atomic.StoreInt32(&s.isSilent, 0)
}

// answersOthers reports whether the database has answered a batch since a call began, when s.answers was answers. A call
// that ran out of its time may have been sent on the connection of that batch, right after the answer: so only an answer
// in the last four fifths of this time counts, else a database that hangs would seem to answer. A stall of this process
// may have the database suspected for no reason, until its next answer.
func (s *server) answersOthers(answers int64, late bool, had time.Duration) bool {
	if atomic.LoadInt64(&s.answers) == answers {
		return false
	}
	return !late || time.Since(s.created)-time.Duration(atomic.LoadInt64(&s.answered)) < had-had/5
}

// silent reports whether the database has not answered since a batch failed.
func (s *server) silent() bool { return atomic.LoadInt32(&s.isSilent) != 0 }

// noDecision is the error of calls that have waited for too long.
func (s *server) noDecision() error {
	if s.silent() {
		return ratelimit.ErrTimeout
	}
	return ratelimit.ErrOverloaded
}

// unavailable returns why no decision can be had, or nil.
func (s *server) unavailable() error {
	if atomic.LoadInt32(&s.isDown) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

// maxRetries bounds how often a transaction is sent again that lost against another. For
// each loss another transaction has succeeded, so all of them make progress.
const maxRetries = 20

// run runs the statements, and gives the database a timeout for each attempt. While the database answers others, it
// waits again for a connection. It runs a transaction again that lost against another one and therefore did nothing:
// because of a deadlock, or because the default isolation of the database is stricter than READ COMMITTED. It reports
// whether a statement has failed.
func (s *server) run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) (bool, error) {
	failed := false
	for attempt := 0; len(statements) > 0; attempt++ {
		sent := time.Now()
		answers := atomic.LoadInt64(&s.answers)
		within, cancel := context.WithTimeout(ctx, timeout)
		deadline, _ := within.Deadline()
		err := s.db.Run(within, statements)
		cancel()
		noTurn := errors.Is(err, sqlstate.ErrNoTurn)
		if noTurn && ctx.Err() == nil && !s.silent() && attempt < batch.MostTimeouts {
			continue // nothing was sent
		}
		if err != nil {
			s.counts.countErrors(statements, err)
			if noTurn {
				return true, err
			}
			if had := deadline.Sub(sent); had >= timeout || !errors.Is(err, context.DeadlineExceeded) {
				err = s.onFailure(err, had, answers)
			} // else the batch has ended the statement early, which says nothing about the database
			return true, err
		}
		s.onAnswer()
		if atomic.LoadInt32(&s.isDown) != 0 {
			s.mu.Lock()
			s.setDown(nil)
			s.mu.Unlock()
		}
		fails := false
		for _, statement := range statements {
			if statement.Err != nil {
				fails = true
				break
			}
		}
		if fails {
			s.counts.countErrors(statements, nil)
		}
		failed = failed || fails
		if !fails || attempt == maxRetries {
			break
		}
		statements = lostTransactions(statements)
	}
	return failed, nil
}

// lostTransactions returns the statements of those transactions that lost against others.
func lostTransactions(statements []*pgdb.Statement) []*pgdb.Statement {
	var lost []*pgdb.Statement
	for from := 0; from < len(statements); {
		to := from
		for statements[to].Joined && to+1 < len(statements) {
			to++
		}
		to++
		for _, s := range statements[from:to] {
			if sqlstate.IsTransient(s.Code) {
				lost = append(lost, statements[from:to]...)
				break
			}
		}
		from = to
	}
	return lost
}

// setDown sets what calls return. The caller holds the mutex.
func (s *server) setDown(err error) {
	s.down = err
	isDown := int32(0)
	if err != nil {
		isDown = 1
	}
	atomic.StoreInt32(&s.isDown, isDown)
}

// onFailure handles an error of DB.Run, or of the wait for a migration. had is the time that the
// call had, and answers is s.answers from before the call. onFailure returns the error for the
// caller: the error of an unavailable database, if err shows that the database is down.
func (s *server) onFailure(err error, had time.Duration, answers int64) error {
	late := errors.Is(err, context.DeadlineExceeded)
	if late && had < fairTime || s.answersOthers(answers, late, had) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Err() != nil {
		return err
	}
	if !late {
		s.setDown(unavailableError(err))
		err = unavailableError(fmt.Errorf("%w: %w", chain.ErrSent, err))
	}
	atomic.StoreInt32(&s.isSilent, 1)
	if !s.probing {
		s.probing = true
		go s.probe(had)
	}
	return err
}

// unavailableError is ErrUnavailable with its cause.
func unavailableError(cause error) error {
	return fmt.Errorf("%w: %w", ratelimit.ErrUnavailable, cause)
}

// probe asks the database until it answers, or the store is closed.
func (s *server) probe(patience time.Duration) {
	if patience < leastProbeTime {
		patience = leastProbeTime
	}
	if patience > mostProbeTime {
		patience = mostProbeTime
	}
	interval := firstProbe
	for {
		ctx, cancel := context.WithTimeout(s.closing, patience)
		answers := atomic.LoadInt64(&s.answers)
		err := s.ping(ctx)
		cancel()
		s.mu.Lock()
		late := errors.Is(err, context.DeadlineExceeded)
		if err == nil || s.answersOthers(answers, late, patience) || s.closing.Err() != nil {
			s.probing = false
			s.setDown(nil)
			atomic.StoreInt32(&s.isSilent, 0)
			s.mu.Unlock()
			return
		}
		if !errors.Is(err, sqlstate.ErrNoTurn) {
			s.setDown(unavailableError(err))
		}
		s.mu.Unlock()
		batch.Sleep(s.closing, interval/2+time.Duration(s.random()*float64(interval)))
		if interval *= 2; interval > longestProbe {
			interval = longestProbe
		}
	}
}

// ping asks the database for a sign of life.
func (s *server) ping(ctx context.Context) error {
	statements := []*pgdb.Statement{{SQL: serverSQL}}
	var err error
	if failure := batch.PanicError(func() { err = s.db.Run(ctx, statements) }); failure != nil {
		return failure
	}
	if err != nil && s.closing.Err() == nil {
		s.counts.countErrors(statements, err)
	}
	if err == nil {
		s.see(statements[0])
	}
	return err
}
