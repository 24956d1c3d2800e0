package clients

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/llm"
)

// attempt is a request of a client, and the response to it.
type attempt struct {
	at          time.Time // of the request
	answered    time.Time
	status      int
	retryAfter  string
	shouldRetry string
}

// front counts the requests of clients to a proxy, and uses up their quotas before their first requests. The
// path of a request begins with the client and the kind.
type front struct {
	t     *testing.T
	proxy *httputil.ReverseProxy
	url   string   // of the proxy
	held  sync.Map // by client: a channel that is closed once the upstream holds a request of the client

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
	r.Header.Set("X-User", parts[0]+"."+parts[1])
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

// useUp uses up the quota of a client. A budget is used up when the response is settled.
func (f *front) useUp(client, kind string) {
	request := func(more ...string) *http.Request {
		r := harness.Get(f.url+"/"+kind+"/chat/completions", append(more, "X-Client", client, "X-User",
			client+"."+kind)...)
		r.Method = http.MethodPost
		return r
	}
	switch kind {
	case "flight":
		held := make(chan struct{})
		f.held.Store(client, held)
		go func() { _, _ = harness.AskBy(http.DefaultClient, request("X-Hold", client)) }()
		<-held
	case "minute", "month":
		if r := harness.Ask(f.t, request()); r.Status != http.StatusOK {
			f.t.Errorf("the first request of %s: status %d, want 200", client, r.Status)
		}
	case "budget", "paid":
		for end := time.Now().Add(patience); ; {
			if r := harness.Ask(f.t, request()); strings.Contains(r.Body, "Budget used up") {
				return
			}
			if time.Now().After(end) {
				f.t.Errorf("the budget of %s is not used up", client)
				return
			}
		}
	}
}

// startUpstream starts a server that responds as the APIs of OpenAI and Anthropic do, and returns its URL. It
// holds a request with X-Hold until ended is closed.
func (f *front) startUpstream(t *testing.T, ended chan struct{}) string {
	t.Helper()
	answers := llm.Answers(t)
	return harness.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		if held, ok := f.held.Load(r.Header.Get("X-Hold")); ok {
			close(held.(chan struct{}))
			<-ended
		}
		name := "openai-chat/plain.json"
		if strings.HasSuffix(strings.TrimSuffix(r.URL.Path, "/"), "/messages") {
			name = "anthropic/plain.json"
		}
		answers[name].Respond(w, false)
	})
}

// startFront starts a proxy with all kinds, and a front before it, and returns the front and its URL.
func startFront(t *testing.T, proxy string) (*front, string) {
	t.Helper()
	ended := make(chan struct{})
	f := &front{t: t, attempts: map[string][]attempt{}}
	dsn, backend := openDatabase(t), f.startUpstream(t, ended)
	var p *harness.Process
	if proxy == "caddy" {
		p, f.url = startCaddy(t, dsn, backend)
	} else {
		p, f.url = startTraefik(t, dsn, backend)
	}
	t.Cleanup(func() { close(ended) }) // a proxy waits for its requests
	p.Await(t, "the policy", func() bool {
		r := harness.Get(f.url+"/banned/", "X-User", "first.banned")
		return harness.Ask(t, r).Status == http.StatusForbidden
	})
	target, err := url.Parse(f.url)
	if err != nil {
		t.Fatal(err)
	}
	f.proxy = httputil.NewSingleHostReverseProxy(target)
	return f, harness.Serve(t, f.ServeHTTP)
}
