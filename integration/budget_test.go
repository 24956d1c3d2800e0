package integration

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/seed"
)

// model is an upstream. Its responses report their tokens, which it adds up.
type model struct {
	mu        sync.Mutex
	random    *rand.Rand
	reserve   int64 // the cost that a proxy charges before the response
	tokens    int64 // tokens of all responses
	beyond    int64 // tokens above the reserves, since the last takeTotals
	responses int64
}

func (m *model) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	m.mu.Lock()
	tokens := 1 + m.random.Int64N(2*m.reserve)
	fails := m.random.IntN(8) == 0
	m.responses++
	if !fails {
		m.tokens += tokens
		m.beyond += max(0, tokens-m.reserve)
	}
	m.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if fails {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintf(w, `{"usage":{"total_tokens":%d}}`, tokens)
}

// takeTotals returns the tokens of all responses, and those beyond the reserves since the last call.
func (m *model) takeTotals() (tokens, beyond int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	tokens, beyond = m.tokens, m.beyond
	m.beyond = 0
	return tokens, beyond
}

// concurrentStatuses sends n requests with an API key concurrently, every other one to Traefik, and returns
// the number of responses by status. Statuses other than 200, 429 and 503 fail the test.
func concurrentStatuses(t *testing.T, proxies map[string]string, key string, n int) map[int]int {
	t.Helper()
	r := harness.Run(t.Context(), harness.Load{Clients: n, Requests: n, Request: func(i int) *http.Request {
		return harness.Get(proxies[[]string{"caddy", "traefik"}[i%2]]+"/v1/chat", "X-Api-Key", key)
	}})
	passed, failed := r.Status[http.StatusOK], r.Status[http.StatusServiceUnavailable]
	if passed+failed+r.Status[http.StatusTooManyRequests] != n {
		t.Fatalf("the statuses of %d requests are %v, want 200, 429 and 503 only", n, r)
	}
	return r.Status
}

// rotateKey replaces the key 1, and returns the new key once both proxies accept it.
func rotateKey(t *testing.T, dsn string) string {
	t.Helper()
	next, err := policy.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	cluster.Execute(t, dsn,
		fmt.Sprintf("SELECT rate_limit_rotate_key(1, '1 h', '\\x%s')", policy.Digest(next)))
	awaitPolicyApplied(t, dsn, 2)
	return next
}

// A key's monthly budget of tokens holds over two proxies: 50 concurrent requests exceed the budget only by
// the tokens above their reserves. A key that replaces the first one continues with the rest of the budget.
// Failed responses cost nothing. The invoice in the metrics has the tokens that the upstream reported.
func TestABudgetOfTokensIsKeptAndInvoiced(t *testing.T) {
	t.Parallel()
	const budget, reserve, concurrent = 60_000, 200, 50
	upstream := &model{random: rand.New(rand.NewPCG(seed.Of(t), 1)), reserve: reserve}
	behind := httptest.NewServer(upstream)
	t.Cleanup(behind.Close)
	key, insert := policytest.NewKey(t, 1, "alice")
	dsn := policytest.Open(t, policytest.People+insert+fmt.Sprintf(`
		ALTER TABLE rate_limit_api_keys ALTER id RESTART WITH 2;
		SELECT rate_limit_rule('budget', count_by => '{key}', paths => '{/v1/*}', per_month => %d, cost => %d,
			settle => 'json usage.total_tokens');
		SELECT rate_limit_rule('requests', count_by => '{user}', per_hour => 1000000);`, budget, reserve))
	proxies := bothProxies(t, dsn, behind.URL, object{"policy": object{"apiKey": "{header.X-Api-Key}"},
		"audit": "denied", "history": object{}})
	awaitPolicyApplied(t, dsn, 2)
	const counted = `SELECT coalesce(max(count), 0)::bigint FROM (SELECT prefix, count FROM rate_limit_durable
		UNION ALL SELECT prefix, count FROM rate_limit_ephemeral) AS c WHERE prefix = 'rule/budget/per_month'`
	var passed, refused, failed, before int64
	for wave, used := 0, false; !used; wave++ {
		statuses := concurrentStatuses(t, proxies, key, concurrent)
		used = statuses[http.StatusTooManyRequests] == concurrent
		passed += int64(statuses[http.StatusOK])
		failed += int64(statuses[http.StatusServiceUnavailable])
		refused += int64(statuses[http.StatusTooManyRequests])
		tokens, beyond := upstream.takeTotals()
		if tokens > max(budget, before)+beyond {
			t.Fatalf("wave %d: %d tokens are spent, want %d at most, and %d by which reserves were too low",
				wave, tokens, max(budget, before), beyond)
		}
		before = tokens
		await(t, "the counter to be the upstream's sum", func() bool {
			return cluster.Query[int64](t, dsn, counted) == tokens
		})
		if wave == 2 {
			key = rotateKey(t, dsn)
		}
	}
	tokens, _ := upstream.takeTotals()
	if tokens <= budget-reserve || failed == 0 {
		t.Fatalf("%d of %d tokens are spent, and %d responses failed, want above %d, and some failures",
			tokens, budget, failed, budget-reserve)
	}
	if upstream.responses != passed+failed {
		t.Fatalf("the upstream has responded %d times, want %d", upstream.responses, passed+failed)
	}
	invoice := func(columns string) string {
		return cluster.Query[string](t, dsn, "SELECT coalesce(("+
			"SELECT concat_ws(' ', "+columns+") FROM rate_limit_metrics WHERE granularity = 'day' "+
			"AND time >= date_trunc('month', now(), 'UTC') AND user_id = 'alice' AND prefix = 'rule/budget' "+
			"AND limit_name = 'per_month' AND endpoint = '/v1/*'), '')")
	}
	want := fmt.Sprint(tokens, " ", (passed+failed)*reserve)
	await(t, "the invoice to be "+want, func() bool { return invoice("sum(settled), sum(charged)") == want })
	check.Equal(t, "the keys in the invoice", invoice("count(DISTINCT key_id)"), "2")
	want = fmt.Sprint(passed+failed+refused, " ", passed+failed, " ", refused)
	await(t, "the requests, and those that passed or were refused, to be "+want, func() bool {
		return cluster.Query[string](t, dsn, "SELECT concat_ws(' ', sum(requests), sum(admitted), "+
			"sum(limited)) FROM rate_limit_metrics WHERE granularity = 'hour' AND user_id = 'alice'") == want
	})
}
