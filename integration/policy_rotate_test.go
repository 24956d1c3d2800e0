package integration

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// A key in place of another one has what is left of a month's budget of tokens, in both proxies, and its
// counter is forgotten with it.
func TestARotatedKeyKeepsItsBudget(t *testing.T) {
	t.Parallel()
	key, insert := newKey(t, 1, "alice")
	dsn := policyDatabase(t, people+insert+`
		ALTER TABLE rate_limit_api_keys ALTER id RESTART WITH 2;
		SELECT rate_limit_rule('budget', count_by => '{key}', per_month => 35, cost => 10,
			settle => 'json usage.total_tokens');`)
	proxies := bothProxies(t, dsn, settledUpstream(t, nil),
		decideAlways(object{"policy": object{"apiKey": "{header.X-Api-Key}"}}))
	awaitObeyed(t, dsn, 2)
	counters := func() string {
		return cluster.Query[string](t, dsn, `SELECT coalesce(string_agg(key || '=' || count, ' '), '')
			FROM (SELECT key, count FROM rate_limit_durable UNION ALL SELECT key, count
			FROM rate_limit_ephemeral) AS c`)
	}
	spend := func(proxy, key, counted string) {
		t.Helper()
		if got := statusWithKey(t, proxies[proxy], key); got != 200 {
			t.Fatalf("%s: %d before %s", proxy, got, counted)
		}
		await(t, "the counter to be "+counted, func() bool { return counters() == counted })
	}
	rotate := func(id int) (key string) {
		t.Helper()
		key, err := policy.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		digest := policy.Digest(key)
		cluster.Execute(t, dsn, fmt.Sprintf("SELECT rate_limit_rotate_key(%d, '1 h', '\\x%x')", id, digest))
		awaitObeyed(t, dsn, 2)
		return key
	}
	spend("caddy", key, "1=7")
	spend("traefik", key, "1=14")
	second := rotate(1)
	spend("caddy", second, "1=21")
	spend("traefik", key, "1=28")
	third := rotate(2)
	for proxy, url := range proxies {
		for i, key := range []string{key, second, third} {
			if got := statusWithKey(t, url, key); got != 429 {
				t.Errorf("%s: the key %d is answered %d after the budget is spent", proxy, i+1, got)
			}
		}
	}
	cluster.Execute(t, dsn, "SELECT rate_limit_forget_person(key_id => 3)")
	if got := counters(); got != "" {
		t.Errorf("after the key is forgotten, counters are %s", got)
	}
}

// statusWithKey sends a request with an API key, and returns the status of the answer.
func statusWithKey(t *testing.T, url, key string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", key)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}
