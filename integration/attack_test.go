package integration

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

var attackFor = flag.Duration("attack", 3*time.Second, "for how long TestAttackersWhoChooseEverything attacks each proxy")

// attack is what the clients of TestAttackersWhoChooseEverything have found out.
type attack struct {
	url string

	mu     sync.Mutex // guards what follows
	status map[int]int
	wrong  []string // answers that are not documented
}

// anyText is text that a client may choose: short and long, of letters and of what means something to a proxy, a
// database, a placeholder or a field.
func anyText() string {
	pieces := []string{"a", "127.0.0.1", "2001:db8::1", "1|", "|", "ip:", "sha256:", "prl_", "'; DROP TABLE rate_limit_rules; --", "{env.PGPASSWORD}", "%00", "%2F", "é", "\"", "\\", ",", ";q=", "\t", "rule/x",
		"gold", "default", "application/problem+json", "*/*", "999999999999999999999", "-5", "NaN", strings.Repeat("x", rand.IntN(5000)), fmt.Sprint(rand.Int64())}
	var text strings.Builder
	for n := rand.IntN(5); n >= 0; n-- {
		text.WriteString(pieces[rand.IntN(len(pieces))])
	}
	return text.String()
}

// anyRequest is a request with headers, a path and a body that the client chooses.
func anyRequest(address string) *http.Request {
	method := []string{"GET", "GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "get", "FOO", "PATCH"}[rand.IntN(10)]
	path := "/" + []string{"", "api/", "login", "api/../login", "x;y=1/", "a%2F..%2Flogin", "slow/"}[rand.IntN(7)]
	if rand.IntN(2) == 0 {
		path += url.PathEscape(anyText()) + "?" + url.QueryEscape(anyText())
	}
	var body io.Reader
	if rand.IntN(4) == 0 {
		body = strings.NewReader(strings.Repeat(anyText(), 1+rand.IntN(20)))
	}
	r, err := http.NewRequest(method, address+path, body)
	if err != nil {
		panic(err)
	}
	for _, name := range []string{"X-Api-Key", "Authorization", "X-Plan", "X-Cost", "X-Tenant", "X-User", "X-Internal", "X-Forwarded-For", "Accept", "Cookie", "RateLimit", "X-RateLimit-Limit", "Retry-After", anyName()} {
		for n := rand.IntN(3); n > 0; n-- {
			r.Header.Add(name, strings.ReplaceAll(anyText(), "%00", ""))
		}
	}
	if rand.IntN(3) == 0 {
		r.Host = []string{"example.com", "EXAMPLE.com.", "[::1]:80", "a.b.c.d", fmt.Sprint("h", rand.Int64(), ".example.com")}[rand.IntN(5)]
	}
	return r
}

func anyName() string { return fmt.Sprint("X-", rand.IntN(1000)) }

// run sends requests until ctx ends.
func (a *attack) run(ctx context.Context) {
	var wait sync.WaitGroup
	for range 16 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
			for ctx.Err() == nil {
				r := anyRequest(a.url)
				response, err := client.Do(r)
				if err != nil {
					a.add(0, fmt.Sprintf("%s %.100s: %v", r.Method, r.URL, err))
					continue
				}
				body, err := io.ReadAll(response.Body)
				response.Body.Close()
				a.add(response.StatusCode, undocumented(r, response, string(body), err))
			}
		}()
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

// undocumented says what is wrong with an answer, or "".
func undocumented(r *http.Request, response *http.Response, body string, err error) string {
	text := fmt.Sprintf("%s %.100s: %d %v %.200q %v", r.Method, r.URL, response.StatusCode, response.Header, body, err)
	contentType := response.Header.Get("Content-Type")
	ours := contentType == "application/json" || contentType == problemJSON
	switch {
	case err != nil:
		return text
	case response.StatusCode == http.StatusOK:
	case (response.StatusCode == http.StatusBadRequest || response.StatusCode == http.StatusRequestHeaderFieldsTooLarge) && !ours: // of the proxy itself
		return ""
	case response.StatusCode != http.StatusTooManyRequests && response.StatusCode != http.StatusBadRequest && response.StatusCode != http.StatusUnauthorized && response.StatusCode != http.StatusPaymentRequired:
		return text
	case !ours || r.Method != http.MethodHead && !json.Valid([]byte(body)):
		return text
	}
	for _, secret := range []string{"PGPASSWORD", "hunter2", "rate_limit_", "goroutine"} {
		if strings.Contains(body, secret) && response.StatusCode != http.StatusOK {
			return text
		}
	}
	for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "RateLimit", "RateLimit-Policy", "Retry-After", "Content-Type"} {
		if len(response.Header.Values(name)) > 1 {
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
		secret    = "hunter2 hunter2 hunter2"
	)
	dsn := policyDatabase(t, `SELECT rate_limit_rule('either', count_by => '{user|ip}', per_minute => 1000);
		SELECT rate_limit_rule('tenant', count_by => '{header:X-Tenant|header:X-Api-Key|ip,route}', per_minute => 100);
		SELECT rate_limit_rule('slow', count_by => '{all}', paths => '{/slow/*}', per_hour => 10, status => 402, message => 'pay');
		SELECT rate_limit_rule('trial', count_by => '{header:X-User|user}', mode => 'shadow', per_hour => 1)`)
	backend := startBackend(t)
	admin := harness.FreeAddress(t)
	tr := startTraefik(t, []route{{"/", backend, object{
		"dsn": dsn, "timeout": "30s", "onError": "deny", "fields": "x ietf", "exempt": "192.0.2.0/24", "exemptHeader": "X-Internal {env.ATTACKED}", "policy": object{"apiKey": "{header.Authorization}", "user": "{header.X-User}"},
		"zones": []object{
			{"prefix": "traefik-key", "key": "{header.X-Api-Key} | {cookie.id} | {client_ip}", "limit": "200 1m", "cost": "{header.X-Cost}", "minCost": "0", "audit": "denied"},
			{"prefix": "traefik-plan", "key": "{header.X-Tenant}", "limits": "{header.X-Plan} gold 1000 1m, default 50 1m"},
			{"prefix": "traefik-trial", "limit": "1 1h", "mode": "shadow"},
			{"prefix": "traefik-login", "limit": "50 1m", "key": "{path}", "match": object{"paths": []string{"/login", "/api/*"}, "headers": []string{"X-Tenant", "X-Plan: gold"}}},
		},
	}}}, "ATTACKED="+secret)
	address := harness.FreeAddress(t)
	c := launchConfig(t, buildCaddy(t), address, fmt.Sprintf(`{
	admin %s
	auto_https off
	log {
		output stderr
		format json
	}
	metrics
	pg_ratelimit {
		dsn %q
		history
	}
}
http://:%s {
	bind 127.0.0.1
	route {
		pg_ratelimit {
			timeout 30s
			on_error deny
			fields x ietf
			exempt 192.0.2.0/24
			exempt_header X-Internal {env.ATTACKED}
			policy {
				api_key {header.Authorization}
				user {header.X-User}
			}
			zone caddy-key {
				key {header.X-Api-Key} | {cookie.id} | {client_ip}
				limit 200 1m
				cost {header.X-Cost}
				min_cost 0
				audit denied
			}
			zone caddy-plan {
				key {header.X-Tenant}
				limits {header.X-Plan} gold 1000 1m, default 50 1m
			}
			zone caddy-trial {
				limit 1 1h
				mode shadow
			}
			zone caddy-login {
				match path /login /api/*
				key {path}
				limit 50 1m
			}
		}
		reverse_proxy %s
	}
}
`, admin, dsn, address[strings.LastIndex(address, ":")+1:], strings.TrimPrefix(backend, "http://")), "ATTACKED="+secret)
	c.AwaitAddress(t, address)
	for _, p := range []struct {
		name, url, admin string
		log              func() string
		metrics          bool
	}{{"Traefik", tr.url, tr.admin, tr.Log, false}, {"Caddy", c.url, "http://" + admin, c.Log, true}} {
		a := &attack{url: p.url, status: map[int]int{}}
		during := func(d time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			a.run(ctx)
		}
		series := func() int {
			if !p.metrics {
				return 0
			}
			return strings.Count(harness.Ask(t, harness.Get(p.admin+"/metrics")).Body, "\ncaddy_pg_ratelimit_")
		}
		during(time.Second + *attackFor/10)
		heap, metrics, lines := heapAt(t, p.admin), series(), strings.Count(p.log(), "\n")
		during(*attackFor)
		grown, newMetrics, newLines := heapAt(t, p.admin)-heap, series()-metrics, strings.Count(p.log(), "\n")-lines
		t.Logf("%s: %v; the heap has grown by %d MB, the metrics by %d, the log by %d lines", p.name, a.status, grown>>20, newMetrics, newLines)
		if len(a.wrong) > 0 {
			t.Errorf("%s: answers that are not documented:\n%s", p.name, strings.Join(a.wrong, "\n"))
		}
		if a.status[http.StatusOK] == 0 || a.status[http.StatusTooManyRequests] == 0 || a.status[http.StatusUnauthorized] == 0 {
			t.Errorf("%s: %v: too few kinds of answers to say anything", p.name, a.status)
		}
		if grown > mostHeap || newMetrics > 20 || newLines > mostLines+int(attackFor.Minutes()*mostLines) {
			t.Errorf("%s: the heap has grown by %d MB, the metrics by %d, and the log by %d lines", p.name, grown>>20, newMetrics, newLines)
		}
		if strings.Contains(p.log(), secret) {
			t.Errorf("the log of %s has the secret", p.name)
		}
	}
}
