package reports

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	openai "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	goopenai "github.com/sashabaranov/go-openai"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/npm"
)

// sdkError is the error of an SDK of a language model.
type sdkError struct {
	Name    string
	Status  int
	Type    string
	Code    string
	Message string
}

// sdkFront counts the requests of SDKs, by the first part of their paths, and sends them to a site.
type sdkFront struct {
	*httptest.Server
	mu       sync.Mutex // guards the fields below
	attempts map[string]int
	headers  []http.Header // of all refusals
}

func (p *proxy) startFront(t *testing.T, id string) *sdkFront {
	t.Helper()
	f := &sdkFront{attempts: map[string]int{}}
	to := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: p.trusted})
	to.ModifyResponse = func(r *http.Response) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.headers = append(f.headers, r.Header)
		return nil
	}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		f.mu.Lock()
		f.attempts[name]++
		f.mu.Unlock()
		r.Host, r.URL.Path = hostOf(id), "/"+path
		to.ServeHTTP(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

// askNode returns the errors of the SDKs for Node.
func (f *sdkFront) askNode(t *testing.T) (ends []sdkError) {
	t.Helper()
	modules, err := npm.Modules(t.Context(), "../.cache/npm", "openai@6.49.0", "@anthropic-ai/sdk@1.14.0")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(modules), "reports.mjs") // Node looks for packages beside it
	text, err := os.ReadFile("testdata/clients.mjs")
	if err == nil {
		err = os.WriteFile(program, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "node", program, f.URL, "k").CombinedOutput()
	if err == nil {
		err = json.Unmarshal(out, &ends)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return ends
}

// askGo returns the errors of the SDKs for Go.
func (f *sdkFront) askGo(t *testing.T) []sdkError {
	t.Helper()
	client := openai.NewClient(option.WithBaseURL(f.URL+"/openai-go/v1"), option.WithAPIKey("k"))
	_, err := client.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{Model: "gpt-4o",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")}})
	first, second := (*openai.Error)(nil), (*goopenai.APIError)(nil)
	if !errors.As(err, &first) {
		t.Fatalf("openai-go: %v, want an error with fields", err)
	}
	config := goopenai.DefaultConfig("k")
	config.BaseURL = f.URL + "/go-openai/v1"
	_, err = goopenai.NewClientWithConfig(config).CreateChatCompletion(t.Context(),
		goopenai.ChatCompletionRequest{Model: "gpt-4o", Messages: []goopenai.ChatCompletionMessage{
			{Role: "user", Content: "hi"}}})
	if !errors.As(err, &second) {
		t.Fatalf("go-openai: %v, want an error with fields", err)
	}
	return []sdkError{{"openai-go", first.StatusCode, first.Type, first.Code, first.Message},
		{"go-openai", second.HTTPStatusCode, second.Type, fmt.Sprint(second.Code), second.Message}}
}

// useUp uses up the budget of a site.
func (p *proxy) useUp(t *testing.T, id string) {
	t.Helper()
	p.Await(t, "the budget of "+id+" to be used up", func() bool {
		r := dial(t, p.trusted, hostOf(id)).ask(t, "POST / "+small, "X-Tokens: 1000")
		return r.Status == http.StatusTooManyRequests && strings.Contains(r.Body, "used up")
	})
}

// asksOnce returns a check that SDKs ask once, and that their errors have a message. Without a wait, waiting
// never helps.
func asksOnce(message string, waits bool) func(*testing.T, *proxy, string, []*harness.Response) {
	return func(t *testing.T, p *proxy, id string, _ []*harness.Response) {
		if waits {
			p.useUp(t, id)
		}
		f := p.startFront(t, id)
		for _, e := range f.askNode(t) {
			check.Equal(t, id+": the requests of "+e.Name, f.attempts[e.Name], 1)
			if want := p.fill(message, id); e.Status != 429 || !strings.HasPrefix(e.Message, want) {
				t.Errorf("%s: %+v, want 429 %s …", id, e, want)
			}
		}
		for _, h := range f.headers {
			check.Equal(t, id+": X-Should-Retry", h.Get("X-Should-Retry"), "false")
			seconds, err := strconv.Atoi(h.Get("Retry-After"))
			if waits != (err == nil) || seconds > 2_147_483 {
				t.Errorf("%s: Retry-After is %q", id, h.Get("Retry-After"))
			}
		}
	}
}

// typed returns a check that the error of each SDK has a status, a code, a message, and a type of each kind
// of SDK.
func typed(usesUp bool, status int, code, message, ofOpenAI, ofAnthropic string) func(*testing.T, *proxy,
	string, []*harness.Response) {
	return func(t *testing.T, p *proxy, id string, _ []*harness.Response) {
		if usesUp {
			p.useUp(t, id)
		}
		f := p.startFront(t, id)
		ends := slices.Concat(f.askNode(t), f.askGo(t))
		check.Equal(t, id+": the number of errors", len(ends), 4)
		for _, e := range ends {
			want := sdkError{e.Name, status, ofOpenAI, code, e.Message}
			if e.Name == "anthropic" {
				want.Type = ofAnthropic
			}
			if e != want || !strings.HasPrefix(e.Message, p.fill(message, id)) {
				t.Errorf("%s: %+v, want %+v and %s …", id, e, want, message)
			}
		}
	}
}

const (
	aHour  = "key all\nalgorithm fixed_window\nlimit 10 1h\nunit tokens"
	aMonth = "key all\nalgorithm fixed_window\nlimit 10 31d\nunit tokens"
	aLot   = "prefix ID-1\nkey all\nlimit 9000000 1h\nunit tokens" // with it, refusals have an object
)

var clients = []report{
	{"R50", "digitallyinduced/haskell-agent#1300; dhkts1/teamclaude-rs#313", []site{
		{zones: []string{"key all\nalgorithm token_bucket\nlimit 2 1m\ncost 5", aLot},
			upstream: mustNotBeAsked,
			check:    asksOnce("Too many requests: limit ID, which never admits", false)},
		{zones: []string{aHour}, upstream: asksModel,
			check: asksOnce("Budget used up: ID opens on 20", true)},
		{zones: []string{aMonth}, upstream: asksModel,
			check: asksOnce("Budget used up: ID opens on 20", true)},
	}},
	{"R51", "langchain-ai/langchainjs#1929; UKGovernmentBEIS/inspect_ai#5340", []site{
		{zones: []string{aHour}, upstream: asksModel, check: typed(true, 429, "insufficient_quota",
			"Budget used up: ID opens on 20", "insufficient_quota", "rate_limit_error")},
		{policy: "api_key {header.Authorization} | {header.X-Api-Key}", zones: []string{aLot},
			upstream: mustNotBeAsked, check: typed(false, 401, "invalid_api_key", "Unknown API key",
				"authentication_error", "authentication_error")},
		{handler: "dsn postgres://127.0.0.1:1/nothing", zones: []string{aLot}, upstream: mustNotBeAsked,
			check: typed(false, 503, "service_unavailable", "Service unavailable", "api_error", "api_error")},
		{zones: []string{"limit 1 1h"}, asks: []ask{{want: "200×1"}, {want: "429×1",
			body: `{"error":"Too many requests","retryAfter":…`}}},
	}},
}
