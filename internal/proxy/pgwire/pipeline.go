package pgwire

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// largeRequest is the size in bytes above which another goroutine writes a request while the call reads the
// responses. Otherwise the client and the server could each wait for the other to read.
const largeRequest = 64 << 10

// pipeline sends statements and reads their responses.
func pipeline(ctx context.Context, c *conn, statements []*pgdb.Statement, unnamed bool) *runError {
	request := c.request[:0]
	plan := c.plan[:0]
	last := len(statements) - 1
	for i, st := range statements {
		st.Err = errPending
		st.Code = ""
		st.Result = st.Result[:0]
		st.Rows = 0
		var pr *prepared
		request, pr = appendStatement(c, request, st, st.Joined && i < last, unnamed)
		if pr == nil {
			return pipelineWithout(ctx, c, statements, i, unnamed)
		}
		plan = append(plan, pr)
	}
	c.request = request
	c.plan = plan
	if c.timeout > 0 {
		c.lateReads = 0
		_ = c.raw.SetDeadline(time.Now().Add(c.timeout))
	}
	if len(request) > largeRequest {
		startWriting(c)
	} else if n, err := c.nc.Write(request); err != nil {
		return notSent(ctx, c, statements, n, err)
	}
	var failed *runError
	for i := 0; i <= last; i++ {
		st := statements[i]
		response := readResponse(c, st, plan[i], st.Joined && i < last)
		if response != nil {
			failed = transactionFailed(ctx, c, statements, i, response, failed)
			if failed != nil && failed.err != nil {
				return failed
			}
			_, i = transaction(statements, i)
		}
	}
	if c.writing != nil {
		finishWriting(c)
	}
	return failed
}

// pipelineWithout is like pipeline but omits the transaction of statement i, which has invalid parameters and
// already has its Err.
func pipelineWithout(ctx context.Context, c *conn, statements []*pgdb.Statement, i int,
	unnamed bool) *runError {
	for _, pr := range c.statements {
		if pr.state == isSent {
			pr.state = isAbsent
		}
	}
	first, last := transaction(statements, i)
	for n := first; n <= last; n++ {
		if n != i {
			setFailed(statements[n], pgdb.ErrRolledBack, "")
		}
	}
	others := append([]*pgdb.Statement(nil), statements[:first]...)
	others = append(others, statements[last+1:]...)
	if len(others) == 0 {
		return nil
	}
	return pipeline(ctx, c, others, unnamed)
}

// transaction returns the first and the last index of the statements in statement i's transaction.
func transaction(statements []*pgdb.Statement, i int) (int, int) {
	first := i
	for first > 0 && statements[first-1].Joined {
		first--
	}
	last := i
	for last < len(statements)-1 && statements[last].Joined {
		last++
	}
	return first, last
}

// notSent handles a Write that failed after n bytes. With n = 0 the statements can be sent again.
func notSent(ctx context.Context, c *conn, statements []*pgdb.Statement, n int, err error) *runError {
	failed := connectionLost(ctx, c, err)
	if n == 0 && !failed.running {
		failed.retry = statements
		return failed
	}
	failed.running = n > 0 && failed.running
	setAllFailed(statements, failed.err, "")
	return failed
}

// transactionFailed handles the failure of statement i, which fails its transaction. It returns failed, with
// this transaction added to retry if it can be sent again. If the connection is lost, transactionFailed sets
// err of the result and Err of all further statements.
func transactionFailed(ctx context.Context, c *conn, statements []*pgdb.Statement, i int,
	response *responseError, failed *runError) *runError {
	first, last := transaction(statements, i)
	e := response.server
	if e == nil {
		failed = connectionLost(ctx, c, response.err)
		setAllFailed(statements[first:], failed.err, "")
		return failed
	}
	if e.fatal() {
		return sessionEnded(statements[first:], pg.Began(statements[first:], i-first, response.started), e,
			failed)
	}
	if pg.ClosesConnection(e.code) {
		c.discard = true
	}
	retry, lost, stale := false, false, false
	if pr := c.plan[i]; pr.name != "" {
		retry = pg.IsLostStatement(e.code)
		// If its Parse failed earlier in this pipeline, the prepared statement is missing but not lost.
		lost = retry && (pr.state == isReady || e.code == pg.DuplicateStatement)
		stale = pg.IsStalePlan(e.code, e.routine, e.message)
	}
	for n := first; n <= last; n++ {
		setFailed(statements[n], pgdb.ErrRolledBack, "")
		if c.plan[n].state == isSent {
			c.plan[n].state = isAbsent // the server skipped its Parse
		}
	}
	setFailed(statements[i], e.err(), e.code)
	if lost || stale {
		c.discard = true // c.statements no longer matches the session
	}
	if !retry && !stale {
		return failed
	}
	if failed == nil {
		failed = &runError{}
	}
	failed.retry = append(failed.retry, statements[first:last+1]...)
	failed.lost = failed.lost || lost
	failed.unnamed = failed.unnamed || lost || stale
	return failed
}

// sessionEnded handles a fatal error in place of a transaction's response. left has the statements from this
// transaction on. started reports whether the server had started the transaction.
func sessionEnded(left []*pgdb.Statement, started bool, e *serverError, failed *runError) *runError {
	lost := pg.IsLostByPooler(e.code, e.message)
	ended := &runError{err: e.err(), code: e.code, lost: lost, unnamed: lost}
	if started || !lost && !pg.EndsSession(e.code) {
		setAllFailed(left, ended.err, ended.code)
		return ended
	}
	if failed != nil {
		ended.retry = failed.retry
		ended.lost = ended.lost || failed.lost
		ended.unnamed = ended.unnamed || failed.unnamed
	}
	ended.retry = append(ended.retry, left...)
	return ended
}

// connectionLost returns the error for a connection that failed.
func connectionLost(ctx context.Context, c *conn, err error) *runError {
	return &runError{
		err:     wrapError(ctx, "asking "+c.peer.String(), err),
		running: errors.Is(err, os.ErrDeadlineExceeded),
	}
}

// startWriting writes the request in another goroutine. The caller calls finishWriting after it has read all
// responses.
func startWriting(c *conn) {
	c.grown = true
	c.writing = make(chan error, 1)
	go write(c, c.request, c.writing)
}

func write(c *conn, request []byte, done chan error) {
	defer func() {
		if p := recover(); p != nil {
			done <- panicError(p)
		}
	}()
	_, err := c.nc.Write(request)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		_ = c.raw.Close() // so that nothing waits for responses
	}
	done <- err
}

func finishWriting(c *conn) {
	err := <-c.writing
	c.writing = nil
	if err != nil {
		c.discard = true // the server responded before it had the whole request
	}
}
