//go:build soak

package integration

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// attackRules are the rules of the hostile lane.
//
//go:embed testdata/attack.sql
var attackRules string

// attackPieces are texts with a meaning in a proxy, a database, a placeholder or a header field.
var attackPieces = []string{"a", "127.0.0.1", "2001:db8::1", "1|", "|", "ip:", "sha256:", "prl_",
	"'; DROP TABLE rate_limit_rules; --", "{env.PGPASSWORD}", "%2F", "é", "\"", "\\", ",", ";q=", "\t",
	"rule/x", "gold", "*/*", "999999999999999999999", "-5", "NaN", strings.Repeat("x", 4000)}

var attackedHeaders = []string{"X-Key", "X-Api-Key", "X-Plan", "X-Cost", "X-Tenant", "X-User",
	"X-Forwarded-For", "Accept", "Cookie", "RateLimit", "X-RateLimit-Limit", "Retry-After"}

// attacker chooses at random every header, path and body that it sends.
type attacker struct{ *rand.Rand }

func (a attacker) text() string {
	text := fmt.Sprint(a.IntN(1000))
	for range a.IntN(5) {
		text += pick(a.Rand, attackPieces...)
	}
	return text
}

func (a attacker) request(address string) *http.Request {
	path := pick(a.Rand, "", "api/", "login", "api/../login", "x;y=1/", "a%2F..%2Flogin", "slow/")
	if a.IntN(2) == 0 {
		path += url.PathEscape(a.text()) + "?" + url.QueryEscape(a.text())
	}
	var body io.Reader
	if a.IntN(4) == 0 {
		body = strings.NewReader(strings.Repeat(a.text(), 1+a.IntN(20)))
	}
	r, err := http.NewRequest(pick(a.Rand, "GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "get", "FOO"),
		address+"/attacked/"+path, body)
	if err != nil {
		panic(err)
	}
	for _, name := range append([]string{fmt.Sprint("X-", a.IntN(1000))}, attackedHeaders...) {
		for range a.IntN(3) {
			r.Header.Add(name, a.text())
		}
	}
	if a.IntN(3) == 0 {
		r.Host = pick(a.Rand, "example.com", "EXAMPLE.com.", "[::1]:80", "a.b.c.d",
			fmt.Sprint("h", a.Int64(), ".example.com"))
	}
	return r
}

// undocumentedResponse describes a response that is not documented, or returns "".
func undocumentedResponse(r *http.Request, response *harness.Response, err error) string {
	text := fmt.Sprintf("%s %.100s: %d %v %.200q %v", r.Method, r.URL, response.Status, response.Header,
		response.Body, err)
	ours := response.Header.Get("Content-Type") == "application/json"
	switch response.Status {
	case http.StatusBadRequest, http.StatusRequestHeaderFieldsTooLarge:
		if !ours {
			// The proxy itself responds. Because it closes the connection before it has read the whole
			// request, err may be a reset.
			return ""
		}
	case http.StatusOK:
		ours = true
	case http.StatusTooManyRequests, http.StatusUnauthorized, http.StatusPaymentRequired:
	default:
		return text
	}
	isJSON := response.Status != http.StatusOK && r.Method != http.MethodHead
	if err != nil || !ours || isJSON && !json.Valid([]byte(response.Body)) {
		return text
	}
	for _, secret := range []string{"PGPASSWORD", "rate_limit_", "goroutine"} {
		if strings.Contains(response.Body, secret) {
			return text
		}
	}
	for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
		"RateLimit", "RateLimit-Policy", "Retry-After", "Content-Type"} {
		if len(response.Header.Values(name)) > 1 {
			return name + ": " + text
		}
	}
	return ""
}

// attack sends hostile requests to each proxy. It fails the test unless all responses are documented, and
// memory, metrics and logs stay bounded.
func (s *soak) attack() {
	const (
		attackers     = 12
		maxHeapGrowth = 48 << 20
		maxNewSeries  = 20
		maxNewLines   = 200 // of a log
	)
	for _, p := range s.proxies {
		used := func() (heap, series, lines int64) {
			metrics := harness.Ask(s.t, harness.Get(p.admin+"/metrics")).Body
			return heapAt(s.t, p.admin), int64(strings.Count(metrics, "\ncaddy_pg_ratelimit_")),
				int64(strings.Count(p.Log(), "pg_ratelimit"))
		}
		var mu sync.Mutex
		statuses, wrong := map[int]int{}, []string(nil) // guarded by mu
		during := func(d time.Duration) {
			until := time.Now().Add(d)
			var running sync.WaitGroup
			for range attackers {
				running.Go(func() {
					client, closeIdle := harness.NewClient(1)
					defer closeIdle()
					a := attacker{rand.New(rand.NewPCG(rand.Uint64(), 0))}
					for time.Now().Before(until) {
						r := a.request(p.url)
						response, err := harness.AskBy(client, r)
						mu.Lock()
						statuses[response.Status]++
						if text := undocumentedResponse(r, &response, err); text != "" && len(wrong) < 5 {
							wrong = append(wrong, text)
						}
						mu.Unlock()
					}
				})
			}
			running.Wait()
		}
		during(soakAttack / 5)
		heap, series, lines := used()
		during(soakAttack)
		moreHeap, moreSeries, moreLines := used()
		fmt.Printf("soak: attackers of %s got %v; the heap has grown by %d MB, the metrics by %d, the log "+
			"by %d lines\n",
			p.name, statuses, (moreHeap-heap)>>20, moreSeries-series, moreLines-lines)
		if len(wrong) > 0 || statuses[http.StatusOK] == 0 || statuses[http.StatusTooManyRequests] == 0 ||
			statuses[http.StatusUnauthorized] == 0 {
			s.t.Errorf("%s: attackers got %v, want 200, 429 and 401; undocumented are\n%s", p.name, statuses,
				strings.Join(wrong, "\n"))
		}
		if moreHeap-heap > maxHeapGrowth || moreSeries-series > maxNewSeries ||
			moreLines-lines > maxNewLines {
			s.t.Errorf("%s: attackers let the heap grow by %d MB, the metrics by %d, the log by %d lines",
				p.name, (moreHeap-heap)>>20, moreSeries-series, moreLines-lines)
		}
		checkNoPanic(s.t, p.name, p.Log())
	}
}
