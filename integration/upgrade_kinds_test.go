package integration

import (
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// kindsSQL makes a policy with a rule of each kind, for the path of its name.
//
//go:embed testdata/kinds.sql
var kindsSQL string

// kindsOf has by path the statuses of requests before an upgrade, and after it.
var kindsOf = map[string][2]string{
	"/sliding_window": {"200 200", "200 429"}, "/fixed_window": {"200 200", "200 429"},
	"/token_bucket": {"200 200", "200 429"}, "/gcra": {"200 200", "200 429"},
	"/sliding_log": {"200 200", "200 429"}, "/calendar": {"200 200", "200 429"},
	"/tier": {"200 200", "200 429"}, "/key": {"200 200", "200 429"},
	"/exempt": {"200 200 200 200", "200"}, "/block": {"403", "403"},
}

// startModel starts a model, and returns its URL. Each answer reports 400 tokens, and with the query stream
// begins at once and ends with end. At other paths it is a holdingUpstream.
func startModel(t *testing.T, end <-chan struct{}) (url string) {
	t.Helper()
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.RequestURI() {
		case "/model?stream":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {}\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-end:
			case <-r.Context().Done():
			}
			_, _ = fmt.Fprintf(w, "data: "+usageBody+"\n\n", 300, 100)
		case "/model":
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, usageBody, 300, 100)
		default:
			holdingUpstream(w, r)
		}
	}))
	t.Cleanup(model.Close)
	return model.URL
}

// askModel asks a model through a proxy, and returns the status and the body of the response when it begins.
func askModel(t *testing.T, url string, headers ...string) (int, io.Reader) {
	t.Helper()
	request := harness.Get(url, headers...)
	request.Method = http.MethodPost
	request.Body = io.NopCloser(strings.NewReader(`{"model": "m", "max_tokens": 100}`))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response.StatusCode, response.Body
}

// checkKinds lets a Caddy decide requests of each kind on tables that sql has made, and on the upgraded ones,
// while a request holds a slot, and an answer units. All counts go on.
func checkKinds(t *testing.T, sql, today string) {
	s := sqltest.Open(t, sql, kindsSQL)
	end := make(chan struct{})
	url := startCaddy(t, s.DSN, route{path: "/leased", limit: decideAlways(object{"prefix": "leased",
		"limit": "30 1h", "algorithm": "fixed_window", "lease": "50%"})},
		route{path: "/", backend: startModel(t, end), limit: decideAlways(object{"policy": object{
			"apiKey": "{header.X-Api-Key}", "withoutKey": "anonymous"}})}).url
	awaitPolicyApplied(t, s.DSN, 1)
	ask := func(path string) (int, io.Reader) { return askModel(t, url+path, "X-Api-Key", "ann") }
	awaitUsed := func(tokens int, holds bool) {
		t.Helper()
		want := fmt.Sprintf("%d %t, %.4f %[2]t, ", tokens, holds, float64(tokens)/1e6)
		await(t, want+"to be used and held", func() bool {
			return s.Query(`SELECT string_agg(concat_ws(' ', trim_scale(used), CASE WHEN held > 0 THEN 'true'
				ELSE 'false' END), ', ' ORDER BY limit_name DESC) || ', ' FROM rate_limit_used
				WHERE rule = 'model' AND key = 'org'`) == want
		})
	}
	decide := func(i int) {
		for path, statuses := range kindsOf {
			n := strings.Count(statuses[i], " ") + 1
			check.Equal(t, path, statusesOf(t, n, url+path, "X-Api-Key", "ann"), statuses[i])
		}
		check.Equal(t, "an unknown key", statusesOf(t, 1, url+"/key", "X-Api-Key", "unknown"), "401")
		check.Equal(t, "a ban", statusesOf(t, 1, url+"/key", "X-Api-Key", "banned"), "403")
		check.Equal(t, "a second slot", statusesOf(t, 1, url+"/hold"), "429")
		status, _ := ask("/model")
		check.Equal(t, "an answer", status, http.StatusOK)
	}
	leased := 0
	lease := func(least int) {
		await(t, "leased units", func() bool {
			leased += strings.Count(statusesOf(t, 10, url+"/leased"), "200")
			return leased >= least
		})
	}
	release := holdSlot(t, url)
	decide(0)
	lease(20)
	awaitUsed(400, false)
	_, stream := ask("/model?stream")
	awaitUsed(400, true)
	check.Equal(t, "migrate", run(t, ".", today, "migrate", "--dsn", s.DSN), "tables  upgraded")
	awaitUsed(400, true)
	decide(1)
	lease(30)
	lease(30)
	check.Equal(t, "passed of a limit of 30 with leases", leased, 30)
	awaitUsed(800, true)
	close(end)
	_, _ = io.Copy(io.Discard, stream)
	awaitUsed(1200, false)
	status, _ := ask("/model")
	check.Equal(t, "an answer beyond the budget", status, http.StatusTooManyRequests)
	s.Expect("SELECT requests, input, output, money FROM rate_limit_invoice('org')", "3 900 300 0.001200000")
	release()
	holdSlot(t, url)()
}
