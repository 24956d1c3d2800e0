package pgwire

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// Bounds of the messages that a client accepts. The buffer grows as data arrives, not to the length that a
// message announces.
const (
	maxMessage      = 16 << 20
	maxErrorMessage = 1 << 20 // of an error or a notice
	firstBuffer     = 16 << 10
	idleBuffer      = 256 << 10 // a larger one is not kept by an idle connection
)

// errTruncated reports that the server closed the connection.
var errTruncated = errors.New("the server closed the connection")

// A Read after the deadline waits for lateRead, and at most mostLate of them follow one another: they
// read what has come.
const (
	lateRead = 5 * time.Millisecond
	mostLate = 8
)

// longAgo is a deadline that ends a Read or Write in progress.
var longAgo = time.Unix(1, 0)

// conn is one connection. It has one owner at a time: a dial, the pool while the
// connection is idle, or the call that acquired it. Only the owner uses it, but
// interrupt may be called by others.
//
// While the connection is idle, its watcher reads: a goroutine that waits in Read,
// so that the end of the connection is known at once. startWatching gives buf[w:],
// readN and readErr to the watcher; fill takes them back when readDone says that
// the Read has returned. So the first bytes of an answer come from the watcher,
// and the owner reads the rest.
type conn struct {
	raw       net.Conn    // the socket
	nc        net.Conn    // raw, or TLS over it
	secure    *tls.Config // nil without TLS
	peer      peer
	cancelKey []byte    // process and secret, for a CancelRequest
	interrupt func()    // makes the Read or Write under way fail; the connection is unusable then
	deadline  time.Time // of the login

	generation int32 // see targetMemory

	// Moments, as time since the pool was created.
	expires  time.Duration // when the connection is too old
	lastUsed time.Duration

	buf  []byte // buf[r:w] has been received and not yet read
	r, w int

	watching bool          // the watcher owns buf[w:], readN and readErr
	readDone chan struct{} // gets one value when the watcher's Read has returned
	resume   chan struct{} // makes the watcher read; closed at the end
	readN    int
	readErr  error

	had  time.Duration // bounds the answer, from when the request is sent; 0 means unbounded
	late int           // the number of Reads of the answer after that

	request    []byte // memory for the next request
	statements map[string]*prepared
	plan       []*prepared // of the statements in the pipeline
	unnamed    bool        // send statements without preparing them
	uses       int         // how many times it may be used without pg.Guard
	usable     bool        // at the end of a call: the connection is in a known state
	grown      bool        // the buffers have grown
	discard    bool        // must not be used again
	cancelling bool        // another goroutine sends a CancelRequest and then closes raw
	closed     bool
	writing    chan error // gets the error of a Write in another goroutine; nil if there is none
}

func newConn(raw net.Conn, to peer) *conn {
	return &conn{
		raw: raw, nc: raw, peer: to, interrupt: interrupter(raw), buf: make([]byte, firstBuffer),
		readDone: make(chan struct{}, 1), resume: make(chan struct{}, 1), statements: map[string]*prepared{},
	}
}

// next reads one message. It skips messages that may come at any time. The body is valid until the next call.
func next(c *conn) (byte, []byte, error) {
	for {
		for c.w-c.r < 5 {
			if err := fill(c); err != nil {
				return 0, nil, err
			}
		}
		kind := c.buf[c.r]
		length := binary.BigEndian.Uint32(c.buf[c.r+1:])
		if length < 4 || length > maxMessage || length > maxErrorMessage && (kind == 'E' || kind == 'N') {
			return 0, nil, fmt.Errorf("the server announced a message %q (0x%02x) of %d bytes, which is "+
				"not accepted", string(rune(kind)), kind, length)
		}
		size := int(length) + 1
		for c.w-c.r < size {
			if err := fill(c); err != nil {
				return 0, nil, err
			}
		}
		body := c.buf[c.r+5 : c.r+size]
		c.r += size
		if kind != 'N' && kind != 'S' && kind != 'A' {
			return kind, body, nil
		}
	}
}

// fill reads more into the buffer. It may move what is there. What has come before the deadline
// counts, even if this process is late to read it.
func fill(c *conn) error {
	err := fillInTime(c)
	for c.had > 0 && c.late < mostLate && errors.Is(err, os.ErrDeadlineExceeded) {
		c.late++
		began := time.Now()
		_ = c.raw.SetReadDeadline(began.Add(lateRead))
		err = read(c)
		if time.Since(began) < 4*lateRead {
			break // else this process may not even have come to read
		}
	}
	return err
}

// fillInTime is fill without reads after the deadline.
func fillInTime(c *conn) error {
	if !c.watching {
		return read(c)
	}
	<-c.readDone
	c.watching = false
	c.w += c.readN
	if c.readN > 0 {
		return nil
	}
	return readError(c.readErr)
}

func read(c *conn) error {
	if c.r > 0 {
		copy(c.buf, c.buf[c.r:c.w])
		c.w -= c.r
		c.r = 0
	}
	if c.w == len(c.buf) {
		bigger := make([]byte, 2*len(c.buf))
		copy(bigger, c.buf)
		c.buf = bigger
		c.grown = true
	}
	n, err := c.nc.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		return nil
	}
	return readError(err)
}

// readError returns the error of a Read that returned no bytes.
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

// putLength writes the length of a message that begins before i and ends with b. i is the index of
// its length field.
func putLength(b []byte, i int) { binary.BigEndian.PutUint32(b[i:], uint32(len(b)-i)) }

// startWatching passes the reading side of the connection to the watcher.
func startWatching(c *conn) {
	if c.watching {
		return
	}
	if c.r == c.w && !c.grown {
		c.r = 0
		c.w = 0
	} else {
		shrink(c)
	}
	c.watching = true
	c.resume <- struct{}{}
}

// shrink empties the buffer, and replaces buffers that have grown.
func shrink(c *conn) {
	copy(c.buf, c.buf[c.r:c.w])
	c.w -= c.r
	c.r = 0
	if c.w == 0 && len(c.buf) > idleBuffer {
		c.buf = make([]byte, firstBuffer)
	}
	c.request = nil
	c.grown = false
}

// watch runs the watcher until resume is closed.
func watch(c *conn) {
	defer func() {
		if p := recover(); p != nil {
			c.readN = 0
			c.readErr = panicError(p)
			c.readDone <- struct{}{}
		}
	}()
	for {
		_, ok := <-c.resume
		if !ok {
			return
		}
		c.readN, c.readErr = c.nc.Read(c.buf[c.w:])
		c.readDone <- struct{}{}
	}
}

// interrupter returns a function that makes the Read or Write in progress fail, and all later ones.
func interrupter(raw net.Conn) func() {
	return func() {
		defer func() { _ = recover() }()
		_ = raw.SetDeadline(longAgo)
	}
}

// closeConn closes the connection, after a Terminate message if terminate is set. Only the owner calls
// closeConn. Further calls do nothing.
func closeConn(c *conn, terminate bool) {
	if c.closed {
		return
	}
	c.closed = true
	close(c.resume)
	if c.cancelling {
		return
	}
	if terminate {
		_ = c.nc.SetDeadline(time.Now().Add(50 * time.Millisecond))
		_, _ = c.nc.Write([]byte("X\x00\x00\x00\x04"))
	}
	_ = c.raw.Close() // not nc.Close, which waits to send an alert of TLS
}

func panicError(p any) error { return fmt.Errorf("pgwire: panic: %v", p) }
