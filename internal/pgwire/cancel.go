package pgwire

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"time"
)

// cancelTimeout bounds one request to cancel.
const cancelTimeout = 2 * time.Second

// cancelRequest asks the server to give up what c is doing, over a connection of its own.
func cancelRequest(c *conn) {
	if len(c.cancelKey) == 0 {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), cancelTimeout)
	defer stop()
	raw, err := (&net.Dialer{}).DialContext(ctx, c.peer.network, c.peer.address)
	if err != nil {
		return
	}
	defer func() { _ = raw.Close() }()
	deadline, _ := ctx.Deadline()
	_ = raw.SetDeadline(deadline)
	line := raw
	if c.secure != nil {
		if len(c.secure.NextProtos) == 0 {
			answer := make([]byte, 1)
			_, _ = raw.Write([]byte("\x00\x00\x00\x08\x04\xd2\x16\x2f"))
			if _, err := io.ReadFull(raw, answer); err != nil || answer[0] != 'S' {
				return
			}
		}
		line = tls.Client(raw, c.secure)
	}
	message := append([]byte("\x00\x00\x00\x00\x04\xd2\x16\x2e"), c.cancelKey...)
	binary.BigEndian.PutUint32(message, uint32(len(message)))
	if _, err := line.Write(message); err != nil {
		return
	}
	_, _ = line.Read(make([]byte, 1)) // the server closes when it is done
}
