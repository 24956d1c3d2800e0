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
	maxErrorMessage = 1 << 20 // for an error or a notice
	firstBuffer     = 16 << 10
	maxIdleBuffer   = 256 << 10 // an idle connection does not keep a larger buffer
)

// errTruncated reports that the server closed the connection.
var errTruncated = errors.New("the server closed the connection")

// After the deadline, fill reads data that has already arrived, in at most maxLateReads Reads of
// lateReadTimeout each.
const (
	lateReadTimeout = 5 * time.Millisecond
	maxLateReads    = 8
)

// longAgo is a deadline that ends a Read or Write in progress.
var longAgo = time.Unix(1, 0)

// conn is one connection. It has one owner at a time: a dial, the pool while the connection is idle, or the
// call that acquired it. Only the owner uses it, except that others may call interrupt.
//
// While the connection is idle, its watcher waits in Read. The watcher is a goroutine that detects the end of
// the connection immediately. startWatching passes buf[w:], readN and readErr to the watcher. fill takes
// these fields over after readDone has reported the end of the Read. So the watcher reads the first bytes of
// a response, and the owner reads all further bytes.
type conn struct {
	raw       net.Conn    // the socket
	nc        net.Conn    // raw, or TLS over it
	secure    *tls.Config // nil without TLS
	peer      peer
	cancelKey []byte    // process and secret, for a CancelRequest
	interrupt func()    // makes the Read or Write in progress fail, and all later ones
	deadline  time.Time // the end of the login

	generation int32 // see targetMemory

	// Times since the pool was created.
	expires  time.Duration // from then on, the connection is too old
	lastUsed time.Duration

	buf  []byte // buf[r:w] is received and unread
	r, w int

	watching bool          // the watcher owns buf[w:], readN and readErr
	readDone chan struct{} // receives one value when the watcher's Read has returned
	resume   chan struct{} // starts the watcher's next Read; closed at the end
	readN    int
	readErr  error

	timeout   time.Duration // from sending the request to the end of the response; 0 means unbounded
	lateReads int           // the number of Reads of the response after the timeout

	request    []byte // a buffer for the next request
	statements map[string]*prepared
	plan       []*prepared   // the plan of each statement in the pipeline
	uses       int           // how often the connection may still be used without pg.Guard
	usable     bool          // the connection is in a known state after a call
	grown      bool          // the buffers have grown
	discard    bool          // close the connection after this call
	timedOut   bool          // the server has not answered in time, and may still work on the request
	ended      chan struct{} // closed when runCancel has ended; nil unless drop passes raw to runCancel
	closed     bool
	writing    chan error // receives the result of a Write in another goroutine; nil without one
}

func newConn(raw net.Conn, to peer) *conn {
	return &conn{
		raw: raw, nc: raw, peer: to, interrupt: interrupter(raw), buf: make([]byte, firstBuffer),
		readDone: make(chan struct{}, 1), resume: make(chan struct{}, 1), statements: map[string]*prepared{},
	}
}

// readMessage reads one message, and returns its kind and its body, which is valid until the next call. It
// skips messages that may arrive at any time, such as notices.
func readMessage(c *conn) (byte, []byte, error) {
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

// fill reads more data into the buffer, and may move the unread data there. If this process had no processor
// time at the deadline, fill still reads data that arrived before the deadline.
func fill(c *conn) error {
	err := fillInTime(c)
	for c.timeout > 0 && c.lateReads < maxLateReads && errors.Is(err, os.ErrDeadlineExceeded) {
		c.lateReads++
		start := time.Now()
		_ = c.raw.SetReadDeadline(start.Add(lateReadTimeout))
		err = read(c)
		if time.Since(start) < 4*lateReadTimeout {
			break // a longer Read may have had no processor time until its deadline
		}
	}
	return err
}

// fillInTime is like fill but does not read after the deadline.
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

// putLength writes the length of a message, which ends with b. i is the index of its length field.
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

// shrink moves unread data to the start of the buffer and replaces buffers that have grown.
func shrink(c *conn) {
	copy(c.buf, c.buf[c.r:c.w])
	c.w -= c.r
	c.r = 0
	if c.w == 0 && len(c.buf) > maxIdleBuffer {
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
	if c.ended != nil {
		return
	}
	if terminate {
		_ = c.nc.SetDeadline(time.Now().Add(50 * time.Millisecond))
		_, _ = c.nc.Write([]byte("X\x00\x00\x00\x04"))
	}
	_ = c.raw.Close() // not nc.Close, which waits to send an alert of TLS
}

func panicError(p any) error { return fmt.Errorf("pgwire: panic: %v", p) }
