package integration

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// TestTheLimitFollowsAValue of a header, in both proxies, and a key keeps what it has used: who is refused with one
// value passes at once with that of a larger limit.
func TestTheLimitFollowsAValue(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{cluster.Open(t), "memory"} {
		zone := object{"prefix": "traefik", "key": "{header.X-User}", "algorithm": "fixed_window", "limits": "{header.X-Plan} gold 1000 1h, free 3 1h, default 2 1h"}
		for proxy, url := range bothProxies(t, dsn, startBackend(t), `zone caddy {
	key {header.X-User}
	algorithm fixed_window
	limits {header.X-Plan} {
		gold 1000 1h
		free 3 1h
		default 2 1h
	}
}`, object{"zones": []object{zone}}) {
			for _, step := range []struct{ plan, statuses, left string }{
				{"free", "200 200 200 429 429", "3 0"}, {"gold", "200 200", "1000 994"}, {"", "429", "2 0"}, {"other", "429", "2 0"}, {"free", "429", "3 0"}, {"gold", "200", "1000 992"},
			} {
				headers := []string{"X-User", "ann", "X-Plan", step.plan}
				count := (len(step.statuses) + 1) / 4
				if got := answersTo(t, count, url, headers...); got != step.statuses {
					t.Errorf("%s: the plan %q answers %s, want %s", proxy, step.plan, got, step.statuses)
				}
				if got := quotaLeft(t, url, headers...); got != step.left {
					t.Errorf("%s: the plan %q has %s, want %s", proxy, step.plan, got, step.left)
				}
			}
			if got := answersTo(t, 3, url, "X-User", "bob"); got != "200 200 429" {
				t.Errorf("%s: another user without a plan is answered %s", proxy, got)
			}
		}
	}
}
