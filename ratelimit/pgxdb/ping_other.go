//go:build !unix

package pgxdb

import "net"

// shouldPing reports whether an idle connection has to be pinged before it is used.
func shouldPing(net.Conn) bool { return true }
