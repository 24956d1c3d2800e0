package docs

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/llm"
)

// moneyModels are models with prices of the page, and what the answer of each costs in billionths.
var moneyModels = []struct {
	name, path, answer string
	tokens             [4]int64 // input, input from a cache, input into one, and output
	cost               int64
}{
	{"gpt-4o-mini", "/v1/chat/completions", "openai-chat/stream.sse", [4]int64{21, 0, 0, 14},
		11550}, // 21 × 0.15 + 14 × 0.60 = 11.55
	{"gpt-4o", "/v1/chat/completions", "openai-chat/cached.json", [4]int64{53, 3968, 0, 14},
		5232500}, // 53 × 2.50 + 3968 × 1.25 + 14 × 10 = 5232.5
	{"claude-haiku-4-5-20251001", "/v1/messages", "anthropic/cached.sse", [4]int64{4, 4425, 317, 14},
		912750}, // 4 × 1 + 4425 × 0.10 + 317 × 1.25 + 14 × 5 = 912.75
}

// moneyBed is a Caddy and a Traefik with the configurations of moneyChapter, in front of a stub of models.
type moneyBed struct {
	*testing.T // of the recipe that runs
	dsn, role  string
	sql        map[string][]string // of the chapter, by section
	proxies    []moneyProxy
	asked      int                    // the requests of ask
	passed     map[string]map[int]int // those that passed, by user and index in moneyModels
}

type moneyProxy struct{ url, host string }

func newMoneyBed(t *testing.T) *moneyBed {
	t.Helper()
	b := &moneyBed{T: t, dsn: cluster.Open(t), sql: map[string][]string{}, passed: map[string]map[int]int{},
		role: "budget_page_" + strings.ToLower(rand.Text())}
	t.Cleanup(func() {
		cluster.Execute(t, b.dsn, fmt.Sprintf("DO $$ BEGIN IF to_regrole('%[1]s') IS NOT NULL THEN DROP "+
			"OWNED BY %[1]s; DROP ROLE %[1]s; END IF; END $$", b.role))
	})
	first, second := startModels(t, "first"), startModels(t, "second")
	for _, one := range page(t, llmPage).blocks {
		if one.chapter == moneyChapter {
			text := strings.NewReplacer("https://api.openai.com", first, "http://own:8000", second,
				"budget_page", b.role, "1d calendar", "1d calendar "+noon()).Replace(one.text)
			switch one.language {
			case "sql":
				b.sql[one.section] = append(b.sql[one.section], text)
			case "caddyfile":
				b.startCaddy(text)
			case "yaml":
				b.startTraefik(text)
			}
		}
	}
	check.Equal(t, "the number of configurations", len(b.proxies), 2)
	await.Until(b.T, "the policy", func() bool {
		return cluster.Query[bool](t, b.dsn, "SELECT to_regclass('rate_limit_proxies') IS NOT NULL")
	})
	return b
}

// noon returns a time zone in which midnight is hours away.
func noon() string {
	if hour := time.Now().UTC().Hour(); hour < 6 || hour >= 18 {
		return "Pacific/Tarawa"
	}
	return "UTC"
}

// startModels starts a stub of the models, which names itself in its responses.
func startModels(t *testing.T, name string) string {
	t.Helper()
	answers := llm.Answers(t)
	return harness.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		var prompt struct{ Model string }
		w.Header().Set("X-Upstream", name)
		if err := json.NewDecoder(r.Body).Decode(&prompt); err == nil {
			for _, m := range moneyModels {
				if prompt.Model == m.name || prompt.Model == oddly(m.name) {
					answers[m.answer].Respond(w, false)
					return
				}
			}
		}
		http.Error(w, "no such model", http.StatusNotFound)
	})
}

// oddly returns another spelling of the name of a model. The upstream gets it as it is, and it is one model.
func oddly(model string) string { return "\t" + strings.ToUpper(model) + " " }

// startCaddy runs the Caddyfile of the page. Every request is decided, however slow the machine is.
func (b *moneyBed) startCaddy(config string) {
	b.Helper()
	address := harness.FreeAddress(b.T)
	config = harness.Replace(b.T, config, "llm.example.com", "{\n\tadmin off\n}\n\nhttp://"+address,
		"pg_ratelimit {\n", "pg_ratelimit {\n\t\t\ttimeout 30s\n\t\t\ton_error deny\n")
	harness.RunCaddy(b.T, "", harness.Caddy(b.T, root), address, config, "DATABASE_URL="+b.dsn)
	b.proxies = append(b.proxies, moneyProxy{"http://" + address, address})
}

// startTraefik runs a Traefik with the dynamic configuration of the page.
func (b *moneyBed) startTraefik(config string) {
	b.Helper()
	tr, address := runTraefik(b.T, b.dsn, decided(config))
	proxy := moneyProxy{"http://" + address, "llm.example.com"}
	tr.Await(b.T, "the routes", func() bool {
		return harness.Ask(b.T, harness.Get(proxy.url, "Host", proxy.host)).Status == http.StatusUnauthorized
	})
	b.proxies = append(b.proxies, proxy)
}

// decided returns a dynamic configuration whose requests are all decided, however slow the machine is.
func decided(config string) string {
	return strings.Replace(config, "pg-ratelimit:\n",
		"pg-ratelimit:\n          timeout: 30s\n          onError: deny\n", 1)
}

const traefikPage = "docs/traefik.md"

// runTraefik runs a Traefik with the plugin and the static configuration of docs/traefik.md and a dynamic
// one, and returns its address.
func runTraefik(t *testing.T, dsn, dynamic string) (tr *harness.Process, address string) {
	t.Helper()
	program, err := harness.Traefik(t.Context(), filepath.Join(root, "integration"))
	check.OK(t, err)
	clone, err := filepath.Abs(root)
	check.OK(t, err)
	dir, blocks := t.TempDir(), page(t, traefikPage).blocks
	address = harness.FreeAddress(t)
	install := strings.Replace(strings.TrimPrefix(blocks[0].text, "$ "), "/path/to/clone", clone, 1)
	cmd := exec.Command("sh", "-c", install)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, text := range map[string]string{"dynamic.yml": dynamic,
		"traefik.yml": strings.Replace(blocks[1].text, `":80"`, address, 1)} {
		check.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	tr = harness.Start(t, harness.Program{Name: "traefik", Path: program, Dir: dir,
		Args: []string{"--configFile=traefik.yml"}, Env: []string{"DATABASE_URL=" + dsn}})
	tr.AwaitAddress(t, address)
	return tr, address
}

// run runs the SQL of a section.
func (b *moneyBed) run(section string) {
	b.Helper()
	for _, text := range b.sql[section] {
		b.execute(text)
	}
}

// execute runs SQL, and waits until both proxies apply it. No month of a user ends soon.
func (b *moneyBed) execute(sql string) {
	b.Helper()
	cluster.Execute(b.T, b.dsn, sql+
		"; UPDATE rate_limit_users SET period_start = current_date - 14 WHERE period_start IS NULL")
	await.Until(b.T, "the proxies to apply all changes", func() bool {
		return cluster.Query[int64](b.T, b.dsn, "SELECT count(*) FROM rate_limit_proxies WHERE behind = 0") ==
			int64(len(b.proxies))
	})
}

// addKey gives a user the API key that ask sends.
func (b *moneyBed) addKey(user string) {
	b.Helper()
	b.execute(fmt.Sprintf(`INSERT INTO rate_limit_api_keys (digest, user_id)
		VALUES (sha256('the API key of %[1]s'), '%[1]s')`, user))
}

// ask sends a prompt to a proxy, and counts it if it passes. model is an index in moneyModels.
func (b *moneyBed) ask(proxy int, user string, model int) harness.Response {
	b.Helper()
	name := moneyModels[model].name
	if b.asked++; b.asked%3 == 0 {
		name = oddly(name)
	}
	r := b.askModel(proxy, user, moneyModels[model].path, name)
	if r.Status == http.StatusOK {
		if b.passed[user] == nil {
			b.passed[user] = map[int]int{}
		}
		b.passed[user][model]++
	}
	return r
}

func (b *moneyBed) askModel(proxy int, user, path, model string) harness.Response {
	b.Helper()
	p := b.proxies[proxy]
	r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, p.url+path,
		strings.NewReader(fmt.Sprintf(`{"model": %q, "max_tokens": 14, "messages": []}`, model)))
	check.OK(b, err)
	r.Host = p.host
	r.Header.Set("Authorization", "Bearer the API key of "+user)
	return harness.Ask(b.T, r)
}

// awaitRefused waits until a proxy refuses a user because a limit is used up.
func (b *moneyBed) awaitRefused(proxy int, user, limit string) {
	b.Helper()
	await.Until(b.T, "a refusal by "+limit, func() bool {
		r := b.ask(proxy, user, 0)
		return r.Status == http.StatusTooManyRequests && strings.Contains(r.Body, limit)
	})
}

// checkUsed waits until all requests are settled, and checks that a limit has used what the requests of its
// user, or of those below it, have cost.
func (b *moneyBed) checkUsed(limit, user string) {
	b.Helper()
	counter := func(column string) string {
		return cluster.Query[string](b.T, b.dsn, `SELECT coalesce(sum(`+column+`), 0)::text
			FROM rate_limit_counters('rule/`+limit+`', true, ARRAY['`+user+`'])`)
	}
	await.Until(b.T, "the settlements", func() bool { return counter("held") == "0" })
	sender := user
	if user == "orbit" || user == "blue" {
		sender = "bob"
	}
	want := fmt.Sprint((b.billionthsOf(sender) + 999) / 1000)
	await.Until(b.T, "the counter of "+limit+" to be "+want, func() bool { return counter("count") == want })
}

// billionthsOf returns what the requests of a user that passed have cost.
func (b *moneyBed) billionthsOf(user string) (sum int64) {
	for model, n := range b.passed[user] {
		sum += int64(n) * moneyModels[model].cost
	}
	return sum
}

func (b *moneyBed) costOf(user string) string { return amountOf(b.billionthsOf(user)) }

// amountOf returns billionths as a decimal number.
func amountOf(billionths int64) string { return big.NewRat(billionths, 1_000_000_000).FloatString(9) }
