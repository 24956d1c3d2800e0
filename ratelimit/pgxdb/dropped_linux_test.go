package pgxdb_test

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// While a firewall drops packets, or the host of the server is off, the kernel repeats packets at longer and
// longer intervals. After the return of the server, the DB does not wait for the kernel's next packet: it
// opens a new connection.
func TestDroppedPacketsDelayNoReconnect(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it waits for timeouts of the system")
	}
	t.Parallel()
	server := cluster.Private(t, cluster.Options{})
	address, restore := droppingAddress(t)
	db := open(t, "postgres://postgres@"+address+"/postgres?sslmode=disable")
	defer db.Close()
	run := func() error {
		return db.Run(t.Context(), 250*time.Millisecond, []*pgdb.Statement{{SQL: "SELECT 1"}})
	}
	for down := time.Now(); time.Since(down) < 20*time.Second; time.Sleep(10 * time.Millisecond) {
		if err := run(); err == nil {
			t.Fatal("Run without a server succeeds, want an error")
		}
	}
	restore(fmt.Sprint("127.0.0.1:", server.Port()))
	restored := time.Now()
	for run() != nil {
		// The kernel would repeat a packet 31 seconds after the first one, or later.
		if time.Since(restored) > 9*time.Second {
			t.Fatal("Run fails 9 seconds after the server has returned, want it to succeed")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// droppingAddress returns an address for which the kernel drops packets, because its queue of connections is
// full. restore forwards later connections to another address.
func droppingAddress(t *testing.T) (address string, restore func(to string)) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "listener")
	listener, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	address = listener.Addr().String()
	full := false
	for range 5 {
		conn, err := net.DialTimeout("tcp", address, 300*time.Millisecond)
		if err != nil {
			full = true
			break
		}
		defer conn.Close()
	}
	if !full {
		t.Fatal("5 connections were accepted, want a full queue")
	}
	return address, func(to string) { slownet.Serve(t, listener, to, 0) }
}
