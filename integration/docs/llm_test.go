package docs

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/llm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/npm"
)

// llmPage is the guide. Another test runs its chapter of recipes, moneyChapter.
const (
	llmPage      = "docs/llm.md"
	moneyChapter = "Budgets in money"
)

// The steps of docs/llm.md lead to limits that count what the SDKs of OpenAI and Anthropic report, in both
// proxies. The test changes only the addresses, and both providers are a stub. It routes all requests of
// Traefik to it. Every request is decided, however slow the machine is: one without a decision has no user.
func TestTheGuideOfLanguageModelsIsEnough(t *testing.T) {
	for name, start := range map[string]func(g *llmGuide, stub string){"caddy": (*llmGuide).startCaddy,
		"traefik": (*llmGuide).startTraefik} {
		t.Run(name, func(t *testing.T) { newLLMGuide(t, start).try() })
	}
}

func (g *llmGuide) try() {
	t, key := g.t, g.createKey()
	g.proxy.Await(t, "the proxy to apply the rules", func() bool {
		return cluster.Query[bool](t, g.dsn,
			"SELECT coalesce(bool_and(policy AND behind = 0), false) FROM rate_limit_proxies")
	})
	check.Equal(t, "what OpenAI's client prints", g.runNode(g.blocks["js"][0], key),
		"brown hens walk over nine red roofs while rain falls on the quiet harbour ")
	g.awaitUsed(35)
	if got := g.runNode(g.blocks["js"][1], key); !strings.Contains(got, "output_tokens: ") {
		t.Errorf("Anthropic's client prints %s, want its usage", got)
	}
	headers := []string{"Authorization", "Bearer " + key}
	r := harness.Get(g.url+"/v1/batches", headers...)
	r.Method = http.MethodPost
	check.Equal(t, "the status of a batch", harness.Ask(t, r).Status, http.StatusBadRequest)
	cluster.Execute(t, g.dsn, "SELECT rate_limit_limit('pro', 'tpm', '10 tokens/1m')")
	g.proxy.Await(t, "a refusal", func() bool {
		got := g.runNode(g.blocks["js"][1], key)
		return strings.HasPrefix(got, "429 ") && strings.Contains(got, "pro/tpm")
	})
	for name, want := range map[string]int{"": http.StatusUnauthorized, "invented": http.StatusUnauthorized,
		key: http.StatusOK} {
		r := harness.Get(g.url+"/v1beta/models?key="+key, "X-Goog-Api-Key", name)
		check.Equal(t, "the status with the key "+name, harness.Ask(t, r).Status, want)
	}
	headers = append(headers, "Connection", "Upgrade", "Upgrade", "websocket")
	for path, want := range map[string]int{"/v1/responses": http.StatusUpgradeRequired,
		"/live": http.StatusOK} {
		check.Equal(t, path, harness.Ask(t, harness.Get(g.url+path, headers...)).Status, want)
	}
}

// llmGuide is a proxy with the configuration of docs/llm.md and its rules, in front of a stub of both
// providers.
type llmGuide struct {
	t        *testing.T
	proxy    *harness.Process
	url, dsn string
	blocks   map[string][]block // by language
	modules  string
}

func newLLMGuide(t *testing.T, start func(g *llmGuide, stub string)) *llmGuide {
	t.Helper()
	g := &llmGuide{t: t, dsn: cluster.Open(t), blocks: map[string][]block{}}
	for _, b := range page(t, llmPage).blocks {
		if b.chapter != moneyChapter {
			g.blocks[b.language] = append(g.blocks[b.language], b)
		}
	}
	answers := llm.Answers(t)
	stub := harness.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		name := "openai-chat/stream.sse"
		if strings.HasPrefix(r.URL.Path, "/v1/messages") {
			name = "anthropic/plain.json"
		}
		answers[name].Respond(w, false)
	})
	start(g, stub)
	g.proxy.Await(t, "the policy", func() bool {
		return cluster.Query[bool](t, g.dsn, "SELECT to_regclass('rate_limit_overrides') IS NOT NULL")
	})
	for _, b := range g.blocks["sql"] {
		cluster.Execute(t, g.dsn, b.text)
	}
	var err error
	g.modules, err = npm.Modules(t.Context(), "../.cache/npm", "openai@6.49.0", "@anthropic-ai/sdk@1.14.0")
	check.OK(t, err)
	return g
}

// startCaddy starts a Caddy with the Caddyfile of the page.
func (g *llmGuide) startCaddy(stub string) {
	address := harness.FreeAddress(g.t)
	g.url = "http://" + address
	config := strings.NewReplacer("llm.example.com", g.url, "https://api.anthropic.com", stub,
		"https://api.openai.com", stub, "pg_ratelimit {\n",
		"pg_ratelimit {\n\t\ttimeout 30s\n\t\ton_error deny\n").Replace(g.blocks["caddyfile"][0].text)
	g.proxy = harness.RunCaddy(g.t, "", harness.Caddy(g.t, root), address, config, "DATABASE_URL="+g.dsn)
}

// startTraefik starts a Traefik with the middleware of the page in front of the stub.
func (g *llmGuide) startTraefik(stub string) {
	var address string
	g.proxy, address = runTraefik(g.t, g.dsn, decided(g.blocks["yaml"][0].text)+"  routers:\n    all:\n"+
		"      rule: PathPrefix(`/`)\n      middlewares: [plans]\n      service: models\n"+
		"  services:\n    models:\n      loadBalancer:\n        servers:\n          - url: "+stub+"\n")
	g.url = "http://" + address
	g.proxy.Await(g.t, "the routes", func() bool {
		return harness.Ask(g.t, harness.Get(g.url)).Status == http.StatusUnauthorized
	})
}

// createKey runs the command that creates a key, and returns the key.
func (g *llmGuide) createKey() string {
	g.t.Helper()
	command, _ := strings.CutPrefix(strings.TrimSpace(g.blocks["console"][0].text), "$ caddy ")
	cmd := exec.Command(harness.Caddy(g.t, root), strings.Fields(command)...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+g.dsn)
	cmd.Stderr = g.t.Output()
	out, err := cmd.Output()
	check.OK(g.t, err)
	return strings.TrimSpace(string(out))
}

// runNode runs a program of the page, and returns what it prints.
func (g *llmGuide) runNode(b block, key string) string {
	g.t.Helper()
	file, err := os.CreateTemp(filepath.Dir(g.modules), "*.mjs") // Node looks for packages beside the program
	check.OK(g.t, err)
	defer func() { _ = os.Remove(file.Name()) }()
	_, err = file.WriteString(strings.ReplaceAll(b.text, "https://llm.example.com", g.url))
	if err == nil {
		err = file.Close()
	}
	check.OK(g.t, err)
	cmd := exec.Command("node", file.Name())
	cmd.Env = append(os.Environ(), "KEY="+key)
	out, err := cmd.CombinedOutput()
	if err != nil {
		g.t.Fatalf("%s: %v\n%s", b, err, out)
	}
	return string(out)
}

// awaitUsed waits until the month's budget has used a number of tokens.
func (g *llmGuide) awaitUsed(want int64) {
	g.t.Helper()
	g.proxy.Await(g.t, "the settlement", func() bool {
		return want == cluster.Query[int64](g.t, g.dsn, `SELECT coalesce(sum(count), 0)::bigint
FROM rate_limit_durable WHERE prefix = 'rule/pro/month'`)
	})
}
