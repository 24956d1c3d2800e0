//go:build unix

package pgxdb

import (
	"net"
	"testing"
	"time"
)

// TestIsReadable looks at a connection on which nothing comes, data, and the end.
func TestIsReadable(t *testing.T) {
	for _, reading := range []bool{false, true} { // in another goroutine, as pgx may do
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		client, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		if reading {
			go func() { _, _ = client.Read(make([]byte, 1)) }()
			time.Sleep(10 * time.Millisecond)
		}
		if isReadable(client) {
			t.Error("nothing was sent, and the connection is readable")
		}
		if !reading {
			if _, err := server.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			waitUntilReadable(t, client)
			if _, err := client.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		server.Close()
		waitUntilReadable(t, client)
	}
}

func waitUntilReadable(t *testing.T, conn net.Conn) {
	t.Helper()
	for started := time.Now(); !isReadable(conn); time.Sleep(time.Millisecond) {
		if time.Since(started) > 5*time.Second {
			t.Fatal("the connection is not readable")
		}
	}
}
