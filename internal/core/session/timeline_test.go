package session_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/session"
)

func TestEarlier(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"7012 00000001", "7012 00000002", true},
		{"7012 00000009", "7012 0000000A", true},
		{"7012 0000000A", "7012 00000009", false},
		{"7012 00000002", "7012 00000002", false},
		{"7012 00000002", "7012 00000001", false},
		{"7012 00000001", "7013 00000002", false}, // another system
		{"", "7012 00000002", false},
		{"7012 00000001", "", false},
	} {
		if got := session.Earlier(c.a, c.b); got != c.want {
			t.Errorf("Earlier(%q, %q) is %v", c.a, c.b, got)
		}
	}
}
