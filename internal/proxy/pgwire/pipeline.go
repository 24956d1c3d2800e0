package pgwire

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// largeRequest is the size in bytes above which another goroutine writes a request while the call reads the
// responses. Otherwise the client and the server could each wait for the other to read.
const largeRequest = 64 << 10

// pipeline sends statements and reads their responses. It sets the outcome of a.
func pipeline(ctx context.Context, c *conn, statements []*pgdb.Statement, a *pg.Attempt) {
	request := c.request[:0]
	plan := c.plan[:0]
	last := len(statements) - 1
	unnamed := a.Unnamed
	for i, st := range statements {
		st.Err = errPending
		st.Code = ""
		st.Result = st.Result[:0]
		st.Rows = 0
		var pr *prepared
		request, pr = appendStatement(c, request, st, st.Joined && i < last, unnamed)
		plan = append(plan, pr)
	}
	c.request = request
	c.plan = plan
	startTimeout(ctx, c)
	if len(request) > largeRequest {
		startWriting(c)
	} else if n, err := c.nc.Write(request); err != nil {
		notSent(c, statements, n, err, a)
		return
	}
	for i := 0; i <= last; i++ {
		st := statements[i]
		response := readResponse(c, st, plan[i], st.Joined && i < last)
		if response != nil {
			i = transactionFailed(c, statements, i, response, a)
			if a.Err != nil {
				return
			}
		}
	}
	if c.writing != nil {
		finishWriting(c)
	}
}

// notSent handles a Write that failed after n bytes. If n is 0, the server has nothing of the statements, so
// they can be sent again.
func notSent(c *conn, statements []*pgdb.Statement, n int, err error, a *pg.Attempt) {
	failure := connectionError(c, err)
	a.ConnectionFailed(statements, n == 0 && !c.timedOut, &pg.ServerError{Err: failure})
	c.timedOut = n > 0 && c.timedOut
}

// transactionFailed handles the failure of statement i, with which its whole transaction has failed.
// transactionFailed returns the index of the last statement of this transaction.
func transactionFailed(c *conn, statements []*pgdb.Statement, i int,
	response *responseError, a *pg.Attempt) int {
	first, end := pg.Transaction(statements, i)
	e := response.failure
	if e.Code == "" {
		e.Err = connectionError(c, e.Err)
	}
	if e.EndsConnection() {
		a.ConnectionEnded(statements[first:], i-first, response.started, e)
		return end - 1
	}
	pr := c.plan[i]
	a.TransactionFailed(statements[first:end], i-first, e, pr.name != "", pr.state == isReady)
	for n := first; n < end; n++ {
		if c.plan[n].state == isSent {
			c.plan[n].state = isAbsent // the server skipped its Parse
		}
	}
	return end - 1
}

// connectionError returns the error for a connection that failed with err, and sets c.timedOut.
func connectionError(c *conn, err error) error {
	c.timedOut = errors.Is(err, os.ErrDeadlineExceeded)
	return fmt.Errorf("pgwire: asking %s: %w", c.peer.String(), err)
}

// startWriting writes the request in another goroutine. The caller calls finishWriting after it has read all
// responses.
func startWriting(c *conn) {
	c.grown = true
	c.writing = make(chan error, 1)
	go write(c, c.request, c.writing)
}

func write(c *conn, request []byte, result chan error) {
	defer func() {
		if p := recover(); p != nil {
			result <- panicError(p)
		}
	}()
	_, err := c.nc.Write(request)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		_ = c.raw.Close() // so that nothing waits for responses
	}
	result <- err
}

func finishWriting(c *conn) {
	err := <-c.writing
	c.writing = nil
	if err != nil {
		c.discard = true // the server responded before it had the whole request
	}
}
