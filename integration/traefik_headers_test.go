package integration

import (
	"strings"
	"testing"
)

// TestTraefikSendsOnByDefault has a real Traefik in front of an upstream that has limits of its own, sends
// an event stream, and changes the protocol. By default the answers may have the headers of both until
// the first one has ended, and have those of the limit after that. All parts of a stream come when they are sent.
func TestTraefikSendsOnByDefault(t *testing.T) {
	t.Parallel()
	proceed := make(chan struct{}, 1)
	upstream := startLimited(t, proceed)
	limit := func(prefix string) object {
		return decideAlways(object{"dsn": "memory", "prefix": prefix, "limit": "100 1h"})
	}
	tr := startTraefik(t, []route{{"/stream", upstream, limit("stream")}, {"/upgrade", upstream, limit("upgrade")}})
	for _, first := range []string{"/stream", "/upgrade"} {
		count := func(request string, parts ...string) int {
			got := strings.ToLower(exchange(t, strings.TrimPrefix(tr.url, "http://"), request, parts, proceed))
			if !strings.Contains(got, "x-ratelimit-limit: 100") {
				t.Errorf("%s: %q has not the header of the limit", first, got)
			}
			return strings.Count(got, "x-ratelimit-limit: ")
		}
		stream := func() int { return count(toStream(first), "200", "one", "two") }
		upgrade := func() int { return count(toUpgrade(first), "101", "hello") }
		ask := stream
		if first == "/upgrade" {
			ask = upgrade
		}
		if n := ask(); n != 2 {
			t.Errorf("%s: the first answer has the header %d times, want 2", first, n)
		}
		await(t, "the headers of the limit", func() bool { return ask() == 1 })
		if stream() != 1 || upgrade() != 1 {
			t.Errorf("%s: a later answer has not the headers of the limit alone", first)
		}
	}
}
