package pgwire

import (
	"crypto/tls"
	"encoding/binary"
	"net"
	"time"
)

// cancelTimeout bounds a CancelRequest, including its connection.
const cancelTimeout = 2 * time.Second

// cancelIfLate starts a goroutine if c has timed out. The goroutine requests that the server cancel the
// statements of c, and then closes c.raw. The caller still owns c and must release c.
func cancelIfLate(p *Pool, c *conn) {
	if !c.timedOut {
		return
	}
	p.mu.Lock()
	tooMany := p.cancels >= p.cfg.maxConns
	if !tooMany {
		p.cancels++
	}
	p.mu.Unlock()
	if tooMany {
		return
	}
	c.canceling = true
	go p.runCancel(c)
}

func (p *Pool) runCancel(c *conn) {
	defer func() {
		if r := recover(); r != nil {
			p.log(panicError(r).Error())
		}
		_ = c.raw.Close()
		p.mu.Lock()
		p.cancels--
		p.mu.Unlock()
	}()
	sendCancel(c)
}

// sendCancel sends a CancelRequest on a new connection, as the protocol requires.
func sendCancel(c *conn) {
	if len(c.cancelKey) == 0 {
		return
	}
	end := time.Now().Add(cancelTimeout)
	raw, err := net.DialTimeout(c.peer.network, c.peer.address, cancelTimeout)
	if err != nil {
		return
	}
	defer func() { _ = raw.Close() }()
	_ = raw.SetDeadline(end)
	nc := raw
	if c.secure != nil {
		reply, err := requestTLS(raw)
		if err != nil || reply != 'S' {
			return
		}
		nc = tls.Client(raw, c.secure)
	}
	message := append([]byte("\x00\x00\x00\x00\x04\xd2\x16\x2e"), c.cancelKey...)
	binary.BigEndian.PutUint32(message, uint32(len(message)))
	if _, err := nc.Write(message); err != nil {
		return
	}
	_, _ = nc.Read(make([]byte, 1)) // returns when the server has handled the request
}
