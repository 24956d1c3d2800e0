package integration

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/seed"
)

// The long form: go test -run 'TestAttackers' -v . -attack 10m
var attackFor = flag.Duration("attack", 2*time.Second, "for how long the tests of attackers attack each server")

// attack is what the attackers of a server have found out.
type attack struct {
	seed uint64
	want []int // statuses without which the attack says nothing

	mu     sync.Mutex // guards what follows
	status map[int]int
	wrong  []string // answers that are not documented
}

func newAttack(t *testing.T, want ...int) *attack {
	return &attack{seed: seed.Of(t), want: want, status: map[int]int{}}
}

// attacker chooses at random what it sends.
type attacker struct{ *rand.Rand }

// text is text that a client may choose: short and long, of letters and of what means something to a proxy, a
// database, a placeholder or a field.
func (by attacker) text() string {
	pieces := []string{"a", "127.0.0.1", "2001:db8::1", "1|", "|", "ip:", "sha256:", "prl_", "'; DROP TABLE rate_limit_rules; --", "{env.PGPASSWORD}", "%00", "%2F", "é", "\"", "\\", ",", ";q=", "\t", "rule/x",
		"gold", "*/*", "999999999999999999999", "-5", "NaN", strings.Repeat("x", by.IntN(5000)), fmt.Sprint(by.Int64())}
	var text strings.Builder
	for n := by.IntN(5); n >= 0; n-- {
		text.WriteString(pieces[by.IntN(len(pieces))])
	}
	return text.String()
}

// request is a request with headers, a path and a body that the client chooses.
func (by attacker) request(address string) *http.Request {
	method := []string{"GET", "GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "get", "FOO", "PATCH"}[by.IntN(10)]
	path := "/" + by.path()
	if by.IntN(2) == 0 {
		path += url.PathEscape(by.text()) + "?" + url.QueryEscape(by.text())
	}
	var body io.Reader
	if by.IntN(4) == 0 {
		body = strings.NewReader(strings.Repeat(by.text(), 1+by.IntN(20)))
	}
	r, err := http.NewRequest(method, address+path, body)
	if err != nil {
		panic(err)
	}
	for _, name := range append([]string{"X-" + strconv.Itoa(by.IntN(1000))}, attackedHeaders...) {
		for n := by.IntN(3); n > 0; n-- {
			r.Header.Add(name, strings.ReplaceAll(by.text(), "%00", ""))
		}
	}
	if by.IntN(3) == 0 {
		r.Host = by.host()
	}
	return r
}

var attackedHeaders = []string{"X-Api-Key", "Authorization", "X-Plan", "X-Cost", "X-Tenant", "X-User", "X-Forwarded-For", "Accept", "Cookie", "RateLimit", "X-RateLimit-Limit", "Retry-After"}

func (by attacker) path() string {
	return []string{"", "api/", "login", "api/../login", "x;y=1/", "a%2F..%2Flogin", "slow/"}[by.IntN(7)]
}

func (by attacker) host() string {
	return []string{"example.com", "EXAMPLE.com.", "[::1]:80", "a.b.c.d", fmt.Sprint("h", by.Int64(), ".example.com")}[by.IntN(5)]
}

// run has attackers send requests for a time, which is longer on a slow machine. Send returns the status of an answer and what is
// wrong with it, or 0 and "" if there was none to look at.
func (a *attack) run(attackers int, d time.Duration, send func(by attacker, client *http.Client) (status int, wrong string)) {
	began := time.Now()
	var wait sync.WaitGroup
	for i := range attackers {
		wait.Go(func() {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport, Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			for by := (attacker{rand.New(rand.NewPCG(a.seed, uint64(i)))}); time.Since(began) < d || a.lacks() != 0 && time.Since(began) < d+time.Minute; {
				a.add(send(by, client))
			}
		})
	}
	wait.Wait()
}

func (a *attack) add(status int, wrong string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status[status]++
	if wrong != "" && len(a.wrong) < 5 {
		a.wrong = append(a.wrong, wrong)
	}
}

// lacks is a status that is wanted and was not seen, or 0.
func (a *attack) lacks() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, status := range a.want {
		if a.status[status] == 0 {
			return status
		}
	}
	return 0
}

// check fails the test if an answer was not documented, or if a status was not seen.
func (a *attack) check(t *testing.T, name string) {
	t.Helper()
	t.Logf("%s: %v", name, a.status)
	if len(a.wrong) > 0 {
		t.Errorf("%s: answers that are not documented:\n%s", name, strings.Join(a.wrong, "\n"))
	}
	if status := a.lacks(); status != 0 {
		t.Errorf("%s: no %d: too few kinds of answers to say anything", name, status)
	}
}

// sendAny sends a request that is one, and checks its answer.
func sendAny(address string) func(by attacker, client *http.Client) (int, string) {
	return func(by attacker, client *http.Client) (int, string) {
		r := by.request(address)
		answer, err := harness.AskBy(client, r)
		return answer.Status, undocumented(r, &answer, err)
	}
}

// undocumented says what is wrong with an answer, or "".
func undocumented(r *http.Request, answer *harness.Answer, err error) string {
	text := fmt.Sprintf("%s %.100s: %d %v %.200q %v", r.Method, r.URL, answer.Status, answer.Header, answer.Body, err)
	contentType := answer.Header.Get("Content-Type")
	ours := contentType == "application/json"
	switch {
	case (answer.Status == http.StatusBadRequest || answer.Status == http.StatusRequestHeaderFieldsTooLarge) && !ours:
		return "" // of the proxy itself, which then closes the connection, and may not have read the request: err may be a reset
	case err != nil:
		return text
	case answer.Status == http.StatusOK:
	case answer.Status != http.StatusTooManyRequests && answer.Status != http.StatusBadRequest && answer.Status != http.StatusUnauthorized && answer.Status != http.StatusPaymentRequired:
		return text
	case !ours || r.Method != http.MethodHead && !json.Valid([]byte(answer.Body)):
		return text
	}
	for _, secret := range []string{"PGPASSWORD", "hunter2", "rate_limit_", "goroutine"} {
		if strings.Contains(answer.Body, secret) && answer.Status != http.StatusOK {
			return text
		}
	}
	for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit", "RateLimit-Policy", "Retry-After", "Content-Type"} {
		if len(answer.Header.Values(name)) > 1 {
			return name + ": " + text
		}
	}
	return ""
}

// TestAttackersWhoChooseEverything choose every header, path and body, with all that a client can influence turned on. The
// answers are those that the documentation names, and metrics, memory and logs stay bounded.
func TestAttackersWhoChooseEverything(t *testing.T) {
	const (
		mostHeap  = 48 << 20
		mostLines = 100 // of a log, and as many a minute
	)
	dsn := policyDatabase(t, `SELECT rate_limit_rule('either', count_by => '{user|ip}', per_minute => 1000);
		SELECT rate_limit_rule('tenant', count_by => '{header:X-Tenant|header:X-Api-Key|ip,route}', per_minute => 100);
		SELECT rate_limit_rule('slow', count_by => '{all}', paths => '{/slow/*}', per_hour => 10, status => 402, message => 'pay');
		SELECT rate_limit_rule('trial', count_by => '{header:X-User|user}', mode => 'shadow', per_hour => 1)`)
	routes := []route{{"/", startBackend(t), object{
		"timeout": "30s", "onError": "deny", "ipStrategy": object{"depth": 1}, "fields": "x ietf",
		"exempt": "192.0.2.0/24",
		"policy": object{"apiKey": "{header.Authorization}", "user": "{header.X-User}"},
		"zones": []object{
			{"prefix": "PROXY-key", "key": "{header.X-Api-Key} | {cookie.id} | {client_ip}", "limit": "200 1m",
				"cost": "{header.X-Cost}", "audit": "denied"},
			{"prefix": "PROXY-plan", "key": "{header.X-Tenant}", "limit": "50 1m"},
			{"prefix": "PROXY-trial", "limit": "1 1h", "mode": "shadow"},
			{"prefix": "PROXY-login", "limit": "50 1m", "key": "{path}", "match": object{"paths": "/login,/api/*"}},
		},
	}}}
	address, admin := harness.FreeAddress(t), harness.FreeAddress(t)
	config := harness.Replace(t, caddyfile(address, dsn, routes), "admin off", "admin "+admin+"\n\tmetrics",
		"protocols h1", "protocols h1\n\t\ttrusted_proxies static 127.0.0.1/32", "pg_ratelimit {\n\t\tdsn", "pg_ratelimit {\n\t\thistory\n\t\tdsn")
	c := launchConfig(t, buildCaddy(t), address, config)
	c.AwaitAddress(t, address)
	login := routes[0].limit["zones"].([]object)[3]["match"].(object)
	login["headers"] = []string{"X-Tenant", "X-Plan: gold"} // which Caddy has another form for
	tr := startTraefikWith(t, object{"forwardedHeaders": object{"insecure": true}}, "INFO", routes, "DATABASE_URL="+dsn)
	for _, p := range []struct {
		name, url, admin string
		log              func() string
		metrics          bool
	}{{"Traefik", tr.url, tr.admin, tr.Log, false}, {"Caddy", c.url, "http://" + admin, c.Log, true}} {
		a := newAttack(t, http.StatusOK, http.StatusTooManyRequests, http.StatusUnauthorized)
		during := func(d time.Duration) {
			a.run(12, d, sendAny(p.url))
		}
		series := func() int {
			if !p.metrics {
				return 0
			}
			return strings.Count(harness.Ask(t, harness.Get(p.admin+"/metrics")).Body, "\ncaddy_pg_ratelimit_")
		}
		during(time.Second + *attackFor/10)
		heap, metrics, lines := heapAt(t, p.admin), series(), ownLines(p.log())
		during(*attackFor)
		grown, newMetrics, newLines := heapAt(t, p.admin)-heap, series()-metrics, ownLines(p.log())-lines
		t.Logf("%s: the heap has grown by %d MB, the metrics by %d, the log by %d lines", p.name, grown>>20, newMetrics, newLines)
		a.check(t, p.name)
		if grown > mostHeap || newMetrics > 20 || newLines > mostLines+int(attackFor.Minutes()*mostLines) {
			t.Errorf("%s: the heap has grown by %d MB, the metrics by %d, and the log by %d lines", p.name, grown>>20, newMetrics, newLines)
		}
		checkNoPanic(t, p.name, p.log())
	}
}

// ownLines is how many lines of a log are ours.
func ownLines(log string) (n int) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "pg_ratelimit") {
			n++
		}
	}
	return n
}

// checkNoPanic fails the test if the log of a process has a panic.
func checkNoPanic(t testing.TB, name, log string) {
	t.Helper()
	if at := strings.Index(log, "panic"); at >= 0 {
		t.Errorf("something panicked in %s: %.3000s", name, log[at:])
	}
}
