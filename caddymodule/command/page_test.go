package command_test

import (
	"strings"
	"testing"
)

func TestThePageIsForThisMachine(t *testing.T) {
	s := newShell(t)
	for _, listen := range []string{"0.0.0.0:0", ":2020", "192.0.2.1:2020", "2020"} {
		said, status := s.program(nil, "pg-ratelimit", "page", "--dsn", s.dsn, "--listen", listen)
		if status == 0 || !strings.Contains(said.stderr, "--listen: ") {
			t.Errorf("%s: status %d, %q; want another than 0, and an error of --listen", listen, status,
				said.stderr)
		}
	}
}
