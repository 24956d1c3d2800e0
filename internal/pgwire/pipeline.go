package pgwire

import (
	"bytes"
	"context"
	"errors"
	"os"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// largeRequest is from where on a request is written beside the reading of its
// answers: both sides could otherwise wait for the other to read.
const largeRequest = 64 << 10

// pipeline sends statements and reads their answers.
func pipeline(ctx context.Context, c *conn, statements []*ratelimit.Statement, unnamed bool) *outcome {
	request := c.request[:0]
	plan := c.plan[:0]
	for _, st := range statements {
		var pr *prepared
		request, pr = appendStatement(c, request, st, unnamed)
		plan = append(plan, pr)
	}
	c.request = request
	c.plan = plan
	if len(request) == 0 {
		return nil // nothing fit to be sent
	}
	if len(request) > largeRequest {
		sendAside(c)
	} else if n, err := c.nc.Write(request); err != nil {
		return notSent(ctx, c, statements, n, err)
	}
	var bad *outcome
	for i, st := range statements {
		pr := plan[i]
		if pr == nil {
			continue
		}
		o := readAnswer(c, st, pr)
		if o != nil {
			bad = failed(ctx, c, statements, i, o, bad)
			if bad != nil && bad.err != nil {
				return bad
			}
		}
	}
	if c.aside != nil {
		waitAside(c)
	}
	return bad
}

// The usual parts of an answer: BindComplete, ReadyForQuery outside a transaction.
var (
	bindComplete = []byte("2\x00\x00\x00\x04")
	readyIdle    = []byte("Z\x00\x00\x00\x05I")
	shortMessage = []byte("C\x00\x00\x00") // a CommandComplete of less than 256 bytes
)

// answer is what became of a statement that did not just succeed.
type answer struct {
	complaint *serverError // the server's
	started   bool         // the server had begun to run it
	err       error        // the connection's
}

// readAnswer reads one statement's answer, up to its ReadyForQuery. It returns
// nil if all is well.
func readAnswer(c *conn, st *ratelimit.Statement, pr *prepared) *answer {
	if c.r == c.w {
		if err := fill(c); err != nil {
			return &answer{err: err}
		}
	}
	seen := c.buf[c.r:c.w]
	if pr.state != isReady || !bytes.HasPrefix(seen, bindComplete) {
		return readRest(c, st, pr, false, nil)
	}
	seen = seen[5:]
	var rowErr error
	if pr.layout != nil && st.Rows != nil {
		seen, rowErr = readRows(c, st, pr.layout, seen)
	}
	c.r = c.w - len(seen)
	if len(seen) > 11 && seen[0] == 'C' {
		// CommandComplete; and does ReadyForQuery follow?
		n := int(seen[4]) + 1
		if n < len(seen) && bytes.HasPrefix(seen, shortMessage) && bytes.HasPrefix(seen[n:], readyIdle) {
			c.r += n + len(readyIdle)
			st.Err = rowErr
			return nil
		}
	}
	return readRest(c, st, pr, true, rowErr)
}

// notSent is the outcome of a Write that failed after n bytes.
func notSent(ctx context.Context, c *conn, statements []*ratelimit.Statement, n int, err error) *outcome {
	bad := lostConn(ctx, c, err)
	if n == 0 && !bad.late {
		bad.again = sendable(statements, c.plan)
		return bad
	}
	bad.late = n > 0 && bad.late
	abandon(sendable(statements, c.plan), bad.err, "")
	return bad
}

// failed takes in an answer that is not all well: that of the statement at i. It
// adds to bad, or returns what is to be done now that the connection is lost.
func failed(ctx context.Context, c *conn, statements []*ratelimit.Statement, i int, o *answer, bad *outcome) *outcome {
	complaint := o.complaint
	if complaint != nil && !complaint.fatal() {
		statements[i].Err = complaint.err()
		statements[i].Code = complaint.code
		return retriable(c, statements[i], c.plan[i], complaint, bad)
	}
	left := sendable(statements[i:], c.plan[i:])
	if complaint == nil {
		bad = lostConn(ctx, c, o.err)
		abandon(left, bad.err, "")
		return bad
	}
	over := &outcome{err: complaint.err(), code: complaint.code}
	if o.started || !complaint.idleEnd() && !complaint.poolerLostStatement() {
		abandon(left, over.err, over.code)
		return over
	}
	if bad != nil {
		over.again = bad.again
	}
	over.again = append(over.again, left...)
	over.lost = complaint.poolerLostStatement()
	return over
}

// sendable are the statements that have a plan.
func sendable(statements []*ratelimit.Statement, plan []*prepared) []*ratelimit.Statement {
	var some []*ratelimit.Statement
	for i, st := range statements {
		if plan[i] != nil {
			some = append(some, st)
		}
	}
	return some
}

// lostConn is the outcome of a connection that failed.
func lostConn(ctx context.Context, c *conn, err error) *outcome {
	return &outcome{
		err:  failure(ctx, "asking "+c.peer.String(), err),
		late: errors.Is(err, os.ErrDeadlineExceeded),
	}
}

// sendAside starts to write a large request in the background.
func sendAside(c *conn) {
	c.fat = true
	c.aside = make(chan error, 1)
	go writeAside(c, c.request, c.aside)
}

// writeAside is that write.
func writeAside(c *conn, request []byte, done chan error) {
	defer func() {
		if p := recover(); p != nil {
			done <- panicError(p)
		}
	}()
	_, err := c.nc.Write(request)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		_ = c.raw.Close() // no answer will come
	}
	done <- err
}

// waitAside waits for the end of writeAside when all answers are there.
func waitAside(c *conn) {
	err := <-c.aside
	c.aside = nil
	if err != nil {
		c.worn = true // all is answered; who knows how
	}
}

// retriable adds a statement that failed to those that are worth another try
// because it was not the statement's fault.
func retriable(c *conn, st *ratelimit.Statement, pr *prepared, complaint *serverError, bad *outcome) *outcome {
	if complaint.code == readOnlyTransaction && c.writer {
		c.worn = true // the server is not what it was; another one is
	}
	if pr.name == "" {
		return bad
	}
	lost := false
	switch {
	case complaint.code == noSuchStatement:
		// Or its Parse failed earlier in this pipeline, which is no loss.
		lost = pr.state == isReady
	case complaint.code == statementExists:
		lost = true
	case complaint.code == featureNotSupported && complaint.routine == routineOfStaleResults:
		pr.state = isAbsent
		pr.stale = true
	default:
		return bad
	}
	if bad == nil {
		bad = &outcome{}
	}
	bad.again = append(bad.again, st)
	if lost {
		bad.lost = true
		forget(c)
	}
	return bad
}
