package clients

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/llm"
)

const root = "../.."

// kinds are the refusals that clients meet. A request of a kind has the kind at the start of its path.
var kinds = []string{"minute", "month", "never", "flight", "down", "banned"}

// site is a Caddy with a refusal of each kind. Each client has its own quotas.
const site = `{
	admin off
	servers {
		protocols h1 h2c
	}
}
http://ADDRESS {
	handle_path /minute/* {
		pg_ratelimit {
			zone minute {
				key {header.X-Client}
				algorithm sliding_log
				limit 1 2s
			}
			TOKENS
		}
		reverse_proxy UPSTREAM
	}
	handle_path /month/* {
		pg_ratelimit {
			zone month {
				key {header.X-Client}
				algorithm sliding_log
				limit 1 31d
			}
			TOKENS
		}
		reverse_proxy UPSTREAM
	}
	handle_path /never/* {
		pg_ratelimit {
			zone never {
				key {header.X-Client}
				cost 5
				limit 2 1m
			}
			TOKENS
		}
		reverse_proxy UPSTREAM
	}
	handle_path /flight/* {
		pg_ratelimit {
			zone flight {
				key {header.X-Client}
				algorithm in_flight
				limit 1
			}
			TOKENS
		}
		reverse_proxy UPSTREAM
	}
	handle_path /down/* {
		pg_ratelimit {
			dsn postgres://127.0.0.1:1/nothing
			on_error deny
			timeout 100ms
			zone down {
				limit 100 1m
			}
			TOKENS
		}
		reverse_proxy UPSTREAM
	}
	handle_path /banned/* {
		pg_ratelimit {
			policy {
				user {header.X-Client}
			}
			TOKENS
		}
		reverse_proxy UPSTREAM
	}
}
`

// tokens is a zone that no request uses up. With it, refusals have objects.
const tokens = `zone tokens {
				key {header.X-Client}
				unit tokens
				limit 9000000 1h
			}`

// attempt is a request of a client, and the response to it.
type attempt struct {
	at          time.Time // of the request
	answered    time.Time
	status      int
	retryAfter  string
	shouldRetry string
}

// front counts the requests of clients to a Caddy, and uses up their quotas before their first requests. The
// path of a request begins with the client and the kind.
type front struct {
	t     *testing.T
	proxy *httputil.ReverseProxy
	url   string // of the Caddy
	held  chan struct{}

	mu       sync.Mutex // guards attempts
	attempts map[string][]attempt
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/"), "/", 3)
	if len(parts) < 2 {
		http.NotFound(w, r)
		return
	}
	name := parts[0] + " " + parts[1]
	f.mu.Lock()
	first := f.attempts[name] == nil
	f.attempts[name] = append(f.attempts[name], attempt{at: time.Now()})
	n := len(f.attempts[name]) - 1
	f.mu.Unlock()
	if first {
		f.useUp(parts[0], parts[1])
	}
	r.URL.Path = "/" + strings.Join(append(parts[1:], ""), "/")
	r.Header.Set("X-Client", parts[0])
	recorder := httptest.NewRecorder()
	f.proxy.ServeHTTP(recorder, r)
	h := recorder.Header()
	f.mu.Lock()
	a := &f.attempts[name][n]
	a.answered, a.status = time.Now(), recorder.Code
	a.retryAfter, a.shouldRetry = h.Get("Retry-After"), h.Get("X-Should-Retry")
	f.mu.Unlock()
	for key, values := range h {
		w.Header()[key] = values
	}
	w.WriteHeader(recorder.Code)
	_, _ = w.Write(recorder.Body.Bytes()) // an error means that the client has left
}

// useUp uses up the quota of a client.
func (f *front) useUp(client, kind string) {
	headers := []string{"X-Client", client}
	switch kind {
	case "flight":
		go func() {
			_, _ = harness.AskBy(http.DefaultClient, harness.Get(f.url+"/flight/",
				append(headers, "X-Hold", "1")...))
		}()
		<-f.held
	case "minute", "month":
		if r := harness.Ask(f.t, harness.Get(f.url+"/"+kind+"/", headers...)); r.Status != http.StatusOK {
			f.t.Errorf("the first request of %s: status %d, want 200", client, r.Status)
		}
	}
}

// upstream responds as the APIs of OpenAI and Anthropic do. It holds a request with X-Hold until ended is
// closed.
func upstream(t *testing.T, held, ended chan struct{}) string {
	t.Helper()
	answers := llm.Answers(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Hold") != "" {
			held <- struct{}{}
			<-ended
		}
		name := "openai-chat/plain.json"
		if strings.HasSuffix(strings.TrimSuffix(r.URL.Path, "/"), "/messages") {
			name = "anthropic/plain.json"
		}
		answers[name].Respond(w, false)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// startFront starts a Caddy with the site, and a front before it, and returns the front and its URL.
func startFront(t *testing.T) (*front, string) {
	t.Helper()
	dsn, address := cluster.Open(t), harness.FreeAddress(t)
	ended := make(chan struct{})
	f := &front{t: t, url: "http://" + address, held: make(chan struct{}), attempts: map[string][]attempt{}}
	config := strings.NewReplacer("TOKENS", tokens, "ADDRESS", address, "UPSTREAM",
		strings.TrimPrefix(upstream(t, f.held, ended), "http://")).Replace(site)
	c := harness.RunCaddy(t, "", harness.Caddy(t, root), config, "DATABASE_URL="+dsn)
	t.Cleanup(func() { close(ended) }) // Caddy waits for its requests
	c.AwaitAddress(t, address)
	c.Await(t, "the policy", func() bool {
		return cluster.Query[bool](t, dsn, "SELECT to_regclass('rate_limit_bans') IS NOT NULL")
	})
	cluster.Execute(t, dsn, "SELECT rate_limit_ban('127.0.0.0/8', until => now() + interval '1 hour')")
	c.Await(t, "the ban", func() bool {
		return harness.Ask(t, harness.Get(f.url+"/banned/")).Status == http.StatusForbidden
	})
	target, err := url.Parse(f.url)
	if err != nil {
		t.Fatal(err)
	}
	f.proxy = httputil.NewSingleHostReverseProxy(target)
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return f, s.URL
}

// most has the largest number of requests that a client sends by default, with the first one.
var most = map[string]int{"openai-node": 3, "anthropic-sdk": 3, "openai-go v1": 3, "openai-go v3": 3,
	"go-openai": 1, "got": 3, "axios-retry": 4, "go-retryablehttp": 5, "urllib3": 4, "curl": 3,
	"node-fetch": 1, "browser": 1}

// knowsShouldRetry has the clients that obey X-Should-Retry.
var knowsShouldRetry = []string{"openai-node", "anthropic-sdk", "openai-go v1", "openai-go v3"}

// patience bounds the wait for a client.
const patience = 8 * time.Second

// report describes the end of a client's request: passed, waits, or refused with the client's error.
type report struct{ Client, Kind, End string }

// A client stops at once, or waits for Retry-After, or without Retry-After sends at most its default number
// of requests. No timer of a client overflows. SDKs of language models report the status and the limit.
func TestClientsUnderstandRefusals(t *testing.T) {
	f, url := startFront(t)
	reports := make(chan report, 200)
	var running sync.WaitGroup
	for _, run := range []func(t *testing.T, url string, to chan<- report){runNode, runPython, runGo, runCurl,
		runBrowser} {
		running.Go(func() { run(t, url, reports) })
	}
	running.Wait()
	close(reports)
	reported := map[string]int{}
	for r := range reports {
		reported[r.Client]++
		f.check(r)
	}
	for client := range most {
		if reported[client] != len(kinds) {
			t.Errorf("%s reported %d requests, want %d", client, reported[client], len(kinds))
		}
	}
}

// check checks what a client did.
func (f *front) check(r report) {
	t := f.t
	f.mu.Lock()
	defer f.mu.Unlock()
	attempts := f.attempts[r.Client+" "+r.Kind]
	t.Log(r, len(attempts))
	if len(attempts) == 0 || len(attempts) > most[r.Client] {
		t.Errorf("%v: %d requests, want 1 to %d", r, len(attempts), most[r.Client])
		return
	}
	for i, a := range attempts[1:] {
		before := attempts[i]
		told, _ := strconv.Atoi(before.retryAfter)
		if wait := a.at.Sub(before.answered); wait < time.Duration(told)*time.Second-100*time.Millisecond {
			t.Errorf("%v: asked again after %v, told %d s", r, wait, told)
		}
		if before.shouldRetry == "false" && slices.Contains(knowsShouldRetry, r.Client) {
			t.Errorf("%v: asked again, told not to", r)
		}
	}
	last := attempts[len(attempts)-1]
	want := "refused"
	if last.status == http.StatusOK {
		want = "passed"
	}
	stops := last.shouldRetry == "false" && slices.Contains(knowsShouldRetry, r.Client)
	if r.End == "waits" && !stops && (last.status == 0 || last.retryAfter != "") {
		return
	}
	if word, _, _ := strings.Cut(r.End, " "); word != want {
		t.Errorf("%v: want %s", r, want)
	}
	isModel := r.Client == "go-openai" || slices.Contains(knowsShouldRetry, r.Client)
	if isModel && want == "refused" {
		names := r.Kind == "minute" || r.Kind == "month" || r.Kind == "never" || r.Kind == "flight"
		if names && !strings.Contains(r.End, "limit "+r.Kind) ||
			!strings.Contains(r.End, strconv.Itoa(last.status)) {
			t.Errorf("%v: want the status %d and the limit", r, last.status)
		}
	}
}
