package pgwire

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Bounds of what is accepted from a server. A buffer grows only as data really
// comes, so a large announced length costs nothing.
const (
	maxMessage   = 16 << 20
	maxComplaint = 1 << 20 // an error or a notice
	firstBuffer  = 16 << 10
	keptBuffer   = 256 << 10 // a larger one is not kept by an idle connection
)

// errTruncated is a connection that the server closed.
var errTruncated = errors.New("the server closed the connection")

// longAgo as a deadline ends a Read or a Write that is under way.
var longAgo = time.Unix(1, 0)

// conn is one connection. It has one owner at a time; the pool hands it over.
//
// While nobody reads, its watcher does: a goroutine that waits in Read. So the
// end of an idle connection is known at once and costs a user nothing to look
// for. Whoever wants to read takes over what the watcher got, and reads on
// himself; rest starts the watcher again.
type conn struct {
	raw       net.Conn    // the socket
	nc        net.Conn    // raw, or TLS over it
	secure    *tls.Config // nil without TLS
	peer      peer
	cancelKey []byte    // process and secret, for a CancelRequest
	interrupt func()    // makes what is under way fail; the connection is lost then
	deadline  time.Time // of the login

	// Moments, as time since the pool's birth.
	expires    time.Duration
	lastUsed   time.Duration
	freshUntil time.Duration // when a sign of life will be due

	buf  []byte // what came and is not yet read is buf[r:w]
	r, w int

	watched bool          // the watcher has buf[w:], got and gotErr until event
	event   chan struct{} // room for one
	resume  chan struct{} // closed at the end
	got     int
	gotErr  error

	request    []byte // kept between requests
	statements map[string]*prepared
	plan       []*prepared // of the pipeline under way
	columns    [][]byte    // kept between rows
	unnamed    bool        // statements are not named
	usable     bool        // at the end of a use: may be used again
	fat        bool        // the buffers have grown
	worn       bool        // not to be used again
	writer     bool        // was chosen because it is not read-only
	lingers    bool        // somebody else closes raw
	ended      bool
	aside      chan error // the end of a Write in another goroutine; nil if there is none
}

func newConn(raw net.Conn, to peer) *conn {
	return &conn{
		raw: raw, nc: raw, peer: to, interrupt: interrupter(raw), buf: make([]byte, firstBuffer),
		event: make(chan struct{}, 1), resume: make(chan struct{}, 1), statements: map[string]*prepared{},
	}
}

// The functions below take the conn as an argument, not as a receiver: to an
// interpreter a method call costs five times as much.

// next reads one message. Its body is valid until the next call.
func next(c *conn) (byte, []byte, error) {
	for c.w-c.r < 5 {
		if err := fill(c); err != nil {
			return 0, nil, err
		}
	}
	kind := c.buf[c.r]
	length := binary.BigEndian.Uint32(c.buf[c.r+1:])
	if length < 4 || length > maxMessage || length > maxComplaint && (kind == 'E' || kind == 'N') {
		return 0, nil, fmt.Errorf("the server announced a message %q (0x%02x) of %d bytes, which cannot be", string(rune(kind)), kind, length)
	}
	size := int(length) + 1
	for c.w-c.r < size {
		if err := fill(c); err != nil {
			return 0, nil, err
		}
	}
	body := c.buf[c.r+5 : c.r+size]
	c.r += size
	return kind, body, nil
}

// fill reads more into the buffer.
func fill(c *conn) error {
	if !c.watched {
		return readMore(c)
	}
	<-c.event
	c.watched = false
	c.w += c.got
	if c.got > 0 {
		return nil
	}
	return readError(c.gotErr)
}

func readMore(c *conn) error {
	if c.r > 0 {
		copy(c.buf, c.buf[c.r:c.w])
		c.w -= c.r
		c.r = 0
	}
	if c.w == len(c.buf) {
		bigger := make([]byte, 2*len(c.buf))
		copy(bigger, c.buf)
		c.buf = bigger
		c.fat = true
	}
	n, err := c.nc.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		return nil
	}
	return readError(err)
}

// readError is the error of a Read that read nothing.
func readError(err error) error {
	switch {
	case err == nil:
		return io.ErrNoProgress
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return errTruncated
	}
	return err
}

// send writes one message.
func send(c *conn, kind byte, body string) error {
	message := append([]byte{kind, 0, 0, 0, 0}, body...)
	putLength(message, 1)
	_, err := c.nc.Write(message)
	return err
}

// putLength writes the length of a message that ends with b and whose length
// field is at i.
func putLength(b []byte, i int) { binary.BigEndian.PutUint32(b[i:], uint32(len(b)-i)) }

// rest hands the reading side to the watcher. The owner must not read again
// before he has taken it back.
func rest(c *conn) {
	if c.watched {
		return
	}
	if c.r == c.w && !c.fat {
		c.r = 0
		c.w = 0
	} else {
		empty(c)
	}
	c.watched = true
	c.resume <- struct{}{}
}

// empty makes room in the buffers.
func empty(c *conn) {
	copy(c.buf, c.buf[c.r:c.w])
	c.w -= c.r
	c.r = 0
	if c.w == 0 && len(c.buf) > keptBuffer {
		c.buf = make([]byte, firstBuffer)
	}
	c.request = nil
	c.fat = false
}

// watch is the watcher. It ends when resume is closed.
func watch(c *conn) {
	defer func() {
		if p := recover(); p != nil {
			c.got = 0
			c.gotErr = panicError(p)
			c.event <- struct{}{}
		}
	}()
	for {
		_, ok := <-c.resume
		if !ok {
			return
		}
		c.got, c.gotErr = c.nc.Read(c.buf[c.w:])
		c.event <- struct{}{}
	}
}

// settled looks at what came while the connection rested, and reports whether
// it still lives. It does not wait.
func settled(c *conn) bool {
	for c.watched && len(c.event) > 0 {
		if err := fill(c); err != nil {
			return false
		}
		if !onlyNoise(c) {
			return false
		}
		rest(c)
	}
	return true
}

// onlyNoise drops from the buffer what a server may say at any time, and reports
// whether there was nothing else: an error is a farewell then.
func onlyNoise(c *conn) bool {
	for c.w > c.r {
		kind := c.buf[c.r]
		if kind != 'N' && kind != 'S' && kind != 'A' {
			return false
		}
		if c.w-c.r < 5 {
			return true
		}
		size := binary.BigEndian.Uint32(c.buf[c.r+1:])
		if size < 4 || size > firstBuffer/2 {
			return false
		}
		if c.w-c.r < int(size)+1 {
			return true
		}
		c.r += int(size) + 1
	}
	return true
}

// check asks the server for a sign of life, and gives it so much time.
func check(ctx context.Context, c *conn, patience time.Duration) bool {
	stop := context.AfterFunc(ctx, c.interrupt)
	alive := c.nc.SetDeadline(time.Now().Add(patience)) == nil && ping(c) && c.nc.SetDeadline(time.Time{}) == nil
	return stop() && alive
}

func ping(c *conn) bool {
	if _, err := c.nc.Write([]byte("S\x00\x00\x00\x04")); err != nil {
		return false
	}
	for {
		kind, body, err := next(c)
		switch {
		case err != nil:
			return false
		case kind == 'Z':
			return len(body) == 1 && body[0] == 'I'
		case kind != 'N' && kind != 'S' && kind != 'A':
			return false
		}
	}
}

// interrupter returns a function that makes the Read or Write under way fail,
// and all that come after.
func interrupter(raw net.Conn) func() {
	return func() {
		defer func() { _ = recover() }()
		_ = raw.SetDeadline(longAgo)
	}
}

// end closes the connection for good; polite says goodbye first. The owner
// calls it, once or more.
func end(c *conn, polite bool) {
	if c.ended {
		return
	}
	c.ended = true
	close(c.resume)
	if c.lingers {
		return
	}
	if polite {
		_ = c.nc.SetDeadline(time.Now().Add(50 * time.Millisecond))
		_, _ = c.nc.Write([]byte("X\x00\x00\x00\x04"))
	}
	_ = c.raw.Close() // not nc: TLS would wait to say goodbye
}

func panicError(p any) error { return fmt.Errorf("pgwire: panic: %v", p) }
