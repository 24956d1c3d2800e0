package pgxdb

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// A Read after the deadline waits for lateRead, and at most mostLate of them follow one another.
const (
	lateRead = 5 * time.Millisecond
	mostLate = 8
)

// lateConn is a connection on which what has come before the deadline counts, even if this process is late to read it.
type lateConn struct {
	net.Conn
	late atomic.Int32 // Reads after the deadline
}

// dialLate dials connections that are lateConn.
func dialLate(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &lateConn{Conn: conn}, nil
	}
}

func (c *lateConn) Read(to []byte) (int, error) {
	n, err := c.Conn.Read(to)
	for n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.late.Add(1) <= mostLate {
		began := time.Now()
		_ = c.Conn.SetReadDeadline(began.Add(lateRead))
		n, err = c.Conn.Read(to)
		if time.Since(began) < 4*lateRead {
			break // else this process may not even have come to read
		}
	}
	return n, err
}

// SetDeadline implements net.Conn. pgx removes the deadline after a call that it has ended.
func (c *lateConn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.late.Store(0)
	}
	return c.Conn.SetDeadline(t)
}

// SyscallConn implements syscall.Conn, for shouldPing.
func (c *lateConn) SyscallConn() (syscall.RawConn, error) {
	socket, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return socket.SyscallConn()
}

// answerContext is the context of the answer to statements that are about to be sent: ctx, but with a deadline after had,
// which is what ctx had left at the call; 0 is no bound.
func answerContext(ctx context.Context, had time.Duration) (context.Context, context.CancelFunc) {
	if had <= 0 {
		return ctx, func() {}
	}
	answer, cancel := context.WithTimeout(context.WithoutCancel(ctx), had)
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancel()
		}
	})
	return answer, func() {
		stop()
		cancel()
	}
}
