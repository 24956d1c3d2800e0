package integration

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// awaitOneListener waits until only one socket listens on an address.
func awaitOneListener(t *testing.T, address string) {
	t.Helper()
	await(t, "the old server to close its listener", func() bool { return listeners(t, address) == 1 })
}

// listeners is how many sockets listen on the port of an IPv4 address.
func listeners(t *testing.T, address string) int {
	t.Helper()
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	const listening = "0A" // TCP_LISTEN
	n := 0
	for line := range strings.Lines(string(text)) {
		// sl local_address rem_address st …
		columns := strings.Fields(line)
		if len(columns) > 3 && strings.HasSuffix(columns[1], fmt.Sprintf(":%04X", at.Port())) && columns[3] == listening {
			n++
		}
	}
	return n
}
