package integration

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestTheFirstAlternativeOfAKeyCounts in both proxies, which make the same keys: a header with the text of an
// address is not that address, and only the alternatives that are credentials are stored as digests.
func TestTheFirstAlternativeOfAKeyCounts(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	urls := bothProxies(t, dsn, startBackend(t), `zone secret {
	key {header.X-Api-Key} | {client_ip}
	limit 100 1h
}
zone plain {
	key {header.X-Tenant} | {header.X-Other} | {client_ip}
	limit 100 1h
}`, object{"zones": []object{
		{"prefix": "secret", "key": "{header.X-Api-Key} | {client_ip}", "limit": "100 1h"},
		{"prefix": "plain", "key": "{header.X-Tenant} | {header.X-Other} | {client_ip}", "limit": "100 1h"},
	}})
	for name, url := range urls {
		for _, headers := range [][]string{
			nil, {"X-Api-Key", "k1"}, {"X-Api-Key", "127.0.0.1"}, {"X-Tenant", "127.0.0.1"}, {"X-Other", "127.0.0.1"}, {"X-Tenant", "acme", "X-Other", "b"}, {"X-Tenant", "", "X-Other", ""},
		} {
			if got := answersTo(t, 1, url, headers...); got != "200" {
				t.Fatalf("%s answers %s", name, got)
			}
		}
	}
	for prefix, counts := range map[string]map[string]int64{
		"secret": {"2|127.0.0.1": 10, ratelimit.DigestKey("1|k1"): 2, ratelimit.DigestKey("1|127.0.0.1"): 2},
		"plain":  {"3|127.0.0.1": 8, "1|127.0.0.1": 2, "2|127.0.0.1": 2, "1|acme": 2},
	} {
		for key, want := range counts {
			if got := queryInt(t, dsn, "SELECT coalesce(sum(count), 0)::bigint FROM rate_limit_ephemeral WHERE prefix = $1 AND key = $2", prefix, key); got != want {
				t.Errorf("%s of %s is %d, want %d", key, prefix, got, want)
			}
		}
		if got := queryInt(t, dsn, "SELECT count(*) FROM rate_limit_ephemeral WHERE prefix = $1", prefix); got != int64(len(counts)) {
			t.Errorf("%s has %d keys, want %d: %s", prefix, got, len(counts), keysOf(t, dsn, prefix))
		}
	}
}
