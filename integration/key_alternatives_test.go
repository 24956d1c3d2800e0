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
		"secret": {"2|127.0.0.1": 10, "1|" + ratelimit.DigestKey("k1"): 2, "1|" + ratelimit.DigestKey("127.0.0.1"): 2},
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

// TestTheFirstAlternativeOfARuleCounts in both proxies, which count together.
func TestTheFirstAlternativeOfARuleCounts(t *testing.T) {
	t.Parallel()
	dsn := policyDatabase(t, `SELECT rate_limit_rule('either', count_by => '{user|ip}', per_hour => 100);
		SELECT rate_limit_rule('secret', count_by => '{header:X-Api-Key|ip,host}', per_hour => 100);
		SELECT rate_limit_rule('tenant', count_by => '{header:X-Tenant|key}', without_header => 'skip', per_hour => 100)`)
	urls := bothProxies(t, dsn, startBackend(t), "policy {\n\tuser {header.X-User}\n}", object{"policy": object{"user": "{header.X-User}"}})
	for name, url := range urls {
		for _, headers := range [][]string{nil, {"X-User", "alice"}, {"X-User", "127.0.0.1"}, {"X-User", "ip:127.0.0.1"}, {"X-Api-Key", "127.0.0.1"}, {"X-Tenant", "acme"}} {
			if got := answersTo(t, 1, url, headers...); got != "200" {
				t.Fatalf("%s answers %s", name, got)
			}
		}
	}
	for rule, want := range map[string]string{
		"either": "'1|127.0.0.1' '1|alice' '1|ip%3A127.0.0.1' '2|127.0.0.1'",
		"secret": "'1|" + ratelimit.DigestKey("127.0.0.1") + " 127.0.0.1' '2|127.0.0.1 127.0.0.1'",
		"tenant": "'1|acme'",
	} {
		if got := keysOf(t, dsn, "rule/"+rule+"/per_hour"); got != want {
			t.Errorf("%s has %s, want %s", rule, got, want)
		}
	}
	if got := queryInt(t, dsn, "SELECT count::bigint FROM rate_limit_ephemeral WHERE prefix = 'rule/either/per_hour' AND key = '2|127.0.0.1'"); got != 6 {
		t.Errorf("%d requests of nobody are counted, want 6", got)
	}
}
