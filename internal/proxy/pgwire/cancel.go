package pgwire

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"time"
)

const (
	// cancelTimeout bounds a CancelRequest, including its connection.
	cancelTimeout = 2 * time.Second

	// cancelInterval is the time between the CancelRequests for a session. A session may need several,
	// because each one ends at most one wait of a pipeline.
	cancelInterval = 50 * time.Millisecond

	// cancelPeriod bounds the time of the CancelRequests for a session since its last message: each wait that
	// ends sends one. Without one, the network has probably lost the connection without a message. It is as
	// long as in pgx.
	cancelPeriod = 15 * time.Second
)

// runCancel requests that the server cancel the statements of c, a connection that has timed out, until the
// server has ended the session. Until then, the connection counts as open: a commit that waits for a
// synchronous standby does not notice that its client has gone. It no longer counts if the server cannot be
// reached, or after cancelPeriod without a message. The call that used c has released it.
func (p *Pool) runCancel(c *conn) {
	defer p.logPanic()
	defer func() {
		_ = c.raw.Close()
		close(c.ended)
		p.mu.Lock()
		p.cancels--
		p.open--
		p.dialIfNeeded()
		p.mu.Unlock()
	}()
	// The session ends after its statements. (Yaegi has no methods for a type assertion to an interface.)
	switch raw := c.raw.(type) {
	case *net.TCPConn:
		_ = raw.CloseWrite()
	case *net.UnixConn:
		_ = raw.CloseWrite()
	}
	unread := make([]byte, firstBuffer)
	for end := time.Now().Add(cancelPeriod); sendCancel(c) && time.Now().Before(end); {
		_ = c.raw.SetReadDeadline(time.Now().Add(cancelInterval))
		var err error
		for err == nil {
			var n int
			if n, err = c.raw.Read(unread); n > 0 {
				end = time.Now().Add(cancelPeriod)
			}
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// sendCancel sends a CancelRequest on a new connection, as the protocol requires. It reports whether the
// server has received it.
func sendCancel(c *conn) bool {
	if len(c.cancelKey) == 0 {
		return false
	}
	end := time.Now().Add(cancelTimeout)
	raw, err := net.DialTimeout(c.peer.network, c.peer.address, cancelTimeout)
	if err != nil {
		return false
	}
	defer func() { _ = raw.Close() }()
	_ = raw.SetDeadline(end)
	nc := raw
	if c.secure != nil {
		reply, err := requestTLS(raw)
		if err != nil || reply != 'S' {
			return false
		}
		nc = tls.Client(raw, c.secure)
	}
	message := append([]byte("\x00\x00\x00\x00\x04\xd2\x16\x2e"), c.cancelKey...)
	binary.BigEndian.PutUint32(message, uint32(len(message)))
	if _, err := nc.Write(message); err != nil {
		return false
	}
	_, err = nc.Read(make([]byte, 1)) // returns when the server has handled the request
	return !errors.Is(err, os.ErrDeadlineExceeded)
}
