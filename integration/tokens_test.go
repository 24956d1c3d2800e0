package integration

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// modelAnswer is a body of a language model's API, with what it reports. A nil count was not reported.
type modelAnswer struct {
	Request     string
	Status      int
	ContentType string `json:"content_type"`
	Rule        string
	Tokens      int64
	Input       *int64
	CacheRead   *int64 `json:"cache_read"`
	CacheWrite  *int64 `json:"cache_write"`
	Output      *int64
	Events      int64 `json:"events_after"`
	Characters  int64 `json:"characters_after"`
	body        []byte
}

// cost returns the tokens of an answer to a request with an estimated input.
func (a *modelAnswer) cost(input int64) int64 {
	if a.Rule != "stream" {
		return a.Tokens
	}
	n := max(a.Events, (a.Characters+3)/4)
	for _, kind := range []*int64{a.CacheRead, a.CacheWrite, a.Output} {
		if kind != nil {
			n += *kind
		}
	}
	if a.Input != nil {
		return n + *a.Input
	}
	return n + input
}

// modelAnswers returns the bodies of the tests of package usage by their names.
func modelAnswers(t *testing.T) map[string]*modelAnswer {
	t.Helper()
	const dir = "../internal/proxy/usage/testdata"
	all := map[string]*modelAnswer{}
	if err := json.Unmarshal([]byte(readFile(t, filepath.Join(dir, "truth.json"))), &all); err != nil {
		t.Fatal(err)
	}
	for name, a := range all {
		a.body = []byte(readFile(t, filepath.Join(dir, name)))
	}
	return all
}

// respondAs sends the body of an answer, as gzip if zipped.
func respondAs(w http.ResponseWriter, a *modelAnswer, zipped bool) {
	body := a.body
	w.Header().Set("Content-Type", a.ContentType)
	if zipped {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(body)
		_ = z.Close()
		body = b.Bytes()
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.WriteHeader(a.Status)
	for len(body) > 0 {
		n := min(len(body), 200)
		_, _ = w.Write(body[:n])
		_ = http.NewResponseController(w).Flush()
		body = body[n:]
	}
}

// In both proxies, a limit and a rule count the tokens that five APIs report, plain and as gzip, and what a
// stream has sent without a report. Requests have no body, so their estimated input is 0: Go's reverse proxy
// may break off a response that begins while it still reads the end of the request's body.
func TestTokensOfLanguageModelsAreCounted(t *testing.T) {
	t.Parallel()
	dsn := policytest.Open(t, `SELECT rate_limit_rule('llm', count_by => '{header:X-Case}', limits =>
		'{rpm=1000000/1h,tpm=1000000 tokens/1h}', algorithm => 'fixed_window')`)
	answers := modelAnswers(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, zipped := strings.CutSuffix(r.Header.Get("X-Answer"), " gzip")
		respondAs(w, answers[name], zipped)
	}))
	t.Cleanup(upstream.Close)
	proxies := bothProxies(t, dsn, upstream.URL, object{"policy": object{"user": "{header.X-User}"},
		"zones": []object{{"prefix": "PROXY", "limit": "1000000 1h", "algorithm": "fixed_window",
			"key": "{header.X-Case}", "unit": "tokens", "output": 500}}})
	counted := func(prefix, key string) int64 {
		return cluster.Query[int64](t, dsn, `SELECT coalesce(sum(count), 0)::bigint FROM rate_limit_ephemeral
			WHERE prefix = $1 AND key = $2`, prefix, key)
	}
	for proxy, url := range proxies {
		for name, a := range answers {
			for _, suffix := range []string{"", " gzip"} {
				key := strings.NewReplacer("/", "-", " ", "-").Replace(proxy + "-" + name + suffix)
				askModel(t, url, a, name+suffix, key)
				for _, prefix := range []string{proxy, "rule/llm/tpm"} {
					what := fmt.Sprintf("%s, %s%s: the count of %s to be %d", proxy, name, suffix, prefix,
						a.cost(0))
					await(t, what, func() bool { return counted(prefix, key) == a.cost(0) })
				}
				if got := counted("rule/llm/rpm", key); got != 1 {
					t.Errorf("%s: %d requests are counted, want 1", key, got)
				}
			}
		}
	}
}

// askModel sends the request of an answer, and reads the response.
func askModel(t *testing.T, url string, a *modelAnswer, answer, key string) {
	t.Helper()
	method, _, _ := strings.Cut(a.Request, " ")
	request := harness.Get(url, "X-Answer", answer, "X-Case", key, "Accept-Encoding", "gzip")
	request.Method = method
	check.Equal(t, "the status of "+answer, harness.Ask(t, request).Status, a.Status)
}
