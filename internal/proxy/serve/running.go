package serve

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
)

// Begin begins the response, which End ends. From then on, a proxy that stops settles the request. w is the
// writer of the response.
func (s *Settling) Begin(w http.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writer = w
	if s.site.running != nil {
		atomic.AddInt32(s.site.busy, 1)
		s.number = s.site.running.Add(s)
		if s.tokens != nil {
			atomic.AddInt64(&s.site.Node.Running, 1)
		}
	}
}

// Stop implements host.Unsettled. A request without a response costs what it costs if its client leaves.
func (s *Settling) Stop() bool {
	atomic.StoreInt32(&s.stopped, 1)
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	s.gone = s.gone || !s.ended && s.client.Err() != nil
	hasWriter := !s.ended && !s.hijacked // a server reuses the writers of other responses
	s.ended = true
	if s.status == 0 {
		s.status = clientLeft
	}
	if s.sent > 0 && hasWriter { // the headers are sent, and what was written may not be yet
		w := http.NewResponseController(s.writer)
		_ = w.SetWriteDeadline(time.Now().Add(flushTimeout))
		_ = w.Flush()
	}
	settle(s)
	return true
}

// flushTimeout bounds the time by which a client that does not read its response delays Stop.
const flushTimeout = 100 * time.Millisecond

// Interrupt implements host.Unsettled.
func (s *Settling) Interrupt() {
	_ = http.NewResponseController(s.writer).SetWriteDeadline(time.Now()) // Lose follows an error
}

// Lose implements host.Unsettled.
func (s *Settling) Lose() {
	if store, ok := s.site.Store.(interface{ Lose(n int) }); ok {
		store.Lose(1)
	}
}

// errStopped is the error of a Write after Stop.
var errStopped = errors.New("pg_ratelimit: the proxy stops, and has settled this request")

// Write writes a part of the body to w, and reads as much of it as was sent. It then flushes a response,
// unless that is nil or there is nothing to settle: a part that cannot be flushed is not sent. Write fails
// after Stop.
func Write(w io.Writer, part []byte, flushed http.ResponseWriter, settlings ...*Settling) (int, error) {
	if len(settlings) == 0 {
		return w.Write(part)
	}
	s := settlings[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	if atomic.LoadInt32(&s.stopped) != 0 {
		return 0, errStopped
	}
	n := 0
	var err error
	if len(settlings) > 1 {
		n, err = Write(w, part, flushed, settlings[1:]...)
	} else if n, err = w.Write(part); flushed != nil && err == nil {
		err = http.NewResponseController(flushed).Flush()
		if errors.Is(err, http.ErrNotSupported) {
			err = nil
		} else if err != nil {
			n = 0
		}
	}
	if s.client.Err() != nil && s.site.running != nil && s.site.running.Stopping() {
		return 0, errStopped // the proxy has closed the connection, and the writers may hide that
	}
	if s.empty || s.ended {
		return n, err
	}
	s.sent += int64(n)
	if s.body != nil {
		_, _ = s.body.Write(part[:n]) // it has no error
	}
	switch {
	case s.header == nil:
	case s.tokens.reader == nil && len(s.start)+n <= startLength:
		s.start = append(s.start, part[:n]...)
		atomic.AddInt64(&bufferedBytes, int64(n))
	default:
		if s.tokens.reader == nil {
			readStarts(s)
		}
		_, _ = s.tokens.reader.Write(part[:n])
	}
	return n, err
}

// startLength bounds the start of a body that waits until its end, when a loop reads it with others.
const startLength = 4 << 10

// readStarts makes the readers of responses, and reads the starts of their bodies, unless it has done so.
func readStarts(all ...*Settling) {
	var starting []*Settling
	var responses []usage.Response
	for _, s := range all {
		if s.tokens.reader == nil {
			starting = append(starting, s)
			responses = append(responses, usage.Response{Header: s.header, Start: s.start})
		}
	}
	for i, r := range usage.New(&bufferedBytes, responses...) {
		starting[i].tokens.reader = r
		starting[i].start = nil
	}
}

// Flush flushes a response. It fails after Stop.
func Flush(w http.ResponseWriter, settlings ...*Settling) error {
	if len(settlings) == 0 {
		return http.NewResponseController(w).Flush()
	}
	s := settlings[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	if atomic.LoadInt32(&s.stopped) != 0 {
		return errStopped
	}
	return Flush(w, settlings[1:]...)
}

// settledConn counts the bytes sent on a hijacked connection, such as a WebSocket.
type settledConn struct {
	net.Conn
	settling []*Settling
}

// SettledConn wraps a hijacked connection, so that the Settlings count the bytes sent on it.
func SettledConn(c net.Conn, settling ...*Settling) net.Conn {
	for _, s := range settling {
		s.mu.Lock()
		s.hijacked = true
		s.mu.Unlock()
	}
	return &settledConn{c, settling}
}

// Write implements net.Conn.
func (c *settledConn) Write(part []byte) (int, error) { return Write(c.Conn, part, nil, c.settling...) }
