//go:build unix

package pgxdb

import (
	"crypto/tls"
	"errors"
	"net"
	"syscall"
)

// shouldPing reports whether an idle connection has to be pinged before it is used: only if the server has
// closed it or sent something, so that a request does not wait for a round trip.
//
// It finds out whether data, or the end of the connection, can be read without waiting, and leaves the data
// there. It uses Control, since RawConn.Read waits for other Reads, and pgx may have one under way in another
// goroutine.
func shouldPing(conn net.Conn) bool {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	nothing := false
	err = raw.Control(func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
		nothing = errors.Is(err, syscall.EAGAIN)
	})
	return err != nil || !nothing
}
