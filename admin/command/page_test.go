package command_test

import (
	"strings"
	"testing"
)

// Without --insecure, the command `page` refuses addresses that other machines can reach, and an address
// without a port. It refuses a host that is no name.
func TestPageListensOnLoopbackOnly(t *testing.T) {
	s := newShell(t)
	for _, listen := range []string{"0.0.0.0:0", ":2020", "192.0.2.1:2020", "2020"} {
		out, status := s.runProgram(nil, "pg-ratelimit", "page", "--listen", listen, "--dsn", s.dsn)
		if status == 0 || !strings.Contains(out.stderr, "--listen: ") {
			t.Errorf("--listen %s: status %d, stderr %q; want a failure and an error for --listen", listen,
				status, out.stderr)
		}
	}
	out, status := s.runProgram(nil, "pg-ratelimit", "page", "--insecure", "--host", "a/b", "--dsn", s.dsn)
	if status == 0 || !strings.Contains(out.stderr, `hosts: "a/b": must be`) {
		t.Errorf("--host a/b: status %d, stderr %q; want a failure and an error for hosts", status,
			out.stderr)
	}
}
