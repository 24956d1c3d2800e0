package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/llm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// In both proxies, a limit and a rule count the tokens that five APIs report, plain and as gzip, and what a
// stream has sent without a report. Requests have no body, so their estimated input is 0: Go's reverse proxy
// may break off a response that begins while it still reads the end of the request's body.
func TestTokensOfLanguageModelsAreCounted(t *testing.T) {
	t.Parallel()
	dsn := policytest.Open(t, `SELECT rate_limit_rule('llm', count_by => '{header:X-Case}', limits =>
		'{rpm=1000000/1h,tpm=1000000 tokens/1h}', algorithm => 'fixed_window')`)
	answers := llm.Answers(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, zipped := strings.CutSuffix(r.Header.Get("X-Answer"), " gzip")
		answers[name].Respond(w, zipped)
	}))
	t.Cleanup(upstream.Close)
	proxies := bothProxies(t, dsn, upstream.URL, object{"policy": object{"user": "{header.X-User}"},
		"zones": []object{{"prefix": "PROXY", "limit": "1000000 1h", "algorithm": "fixed_window",
			"key": "{header.X-Case}", "unit": "tokens", "output": 500}}})
	for proxy, url := range proxies {
		for name, a := range answers {
			for _, suffix := range []string{"", " gzip"} {
				key := strings.NewReplacer("/", "-", " ", "-").Replace(proxy + "-" + name + suffix)
				askModel(t, url, a, name+suffix, key)
				for _, prefix := range []string{proxy, "rule/llm/tpm"} {
					what := fmt.Sprintf("%s, %s%s: the count of %s to be %d", proxy, name, suffix, prefix,
						a.Cost(0))
					await(t, what, func() bool { return countOf(t, dsn, prefix, key) == a.Cost(0) })
				}
				if got := countOf(t, dsn, "rule/llm/rpm", key); got != 1 {
					t.Errorf("%s: %d requests are counted, want 1", key, got)
				}
			}
		}
	}
}

// askModel sends the request of an answer, and reads the response.
func askModel(t *testing.T, url string, a *llm.Answer, answer, key string) {
	t.Helper()
	method, _, _ := strings.Cut(a.Request, " ")
	request := harness.Get(url, "X-Answer", answer, "X-Case", key, "Accept-Encoding", "gzip")
	request.Method = method
	check.Equal(t, "the status of "+answer, harness.Ask(t, request).Status, a.Status)
}
