package page

import (
	_ "embed"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// site is a Caddy with a policy and a history, and the page of its database.
type site struct {
	*testing.T
	dsn, page string
	proxy     string // the URL of the Caddy
	pagePID   int
	ann, acme string // API keys
	client    http.Client
}

//
//go:embed testdata/Caddyfile
var siteConfig string

// startSite starts a Caddy and the page, with the users ann, who may send 5 requests an hour, and acme, who
// may send 1,000.
func startSite(t *testing.T, dsn string) *site {
	t.Helper()
	s := &site{T: t, dsn: dsn}
	cluster.Execute(t, s.dsn, schema.File)
	cluster.Execute(t, s.dsn, `INSERT INTO rate_limit_tiers (tier, rank) VALUES ('free', 1), ('pro', 2);
		SELECT rate_limit_rule('free', family => 'plan', priority => 40, tiers => '{free}', per_hour => 5);
		SELECT rate_limit_rule('pro', family => 'plan', priority => 30, tiers => '{pro}', per_hour => 1000);
		INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'free'), ('acme', 'pro')`)
	for user, key := range map[string]*string{"ann": &s.ann, "acme": &s.acme} {
		var err error
		if *key, err = policy.NewKey(); err != nil {
			t.Fatal(err)
		}
		cluster.Query[int](t, s.dsn, `INSERT INTO rate_limit_api_keys (digest, user_id, name)
			VALUES (sha256(convert_to($1, 'UTF8')), $2, 'app') RETURNING 1`, *key, user)
	}
	caddy := harness.Caddy(t, "../..")
	proxyAddress := harness.FreeAddress(t)
	harness.RunCaddy(t, "edge-1", caddy, proxyAddress, fmt.Sprintf(siteConfig, s.dsn, proxyAddress, "edge-1"))
	s.proxy = "http://" + proxyAddress
	address := harness.FreeAddress(t)
	page := harness.Start(t, harness.Program{Name: "the page", Path: caddy,
		Args: []string{"pg-ratelimit", "page", "--listen", address, "--dsn", s.dsn}})
	s.pagePID = page.PID()
	page.AwaitAddress(t, address)
	s.page = "http://" + address + "/"
	return s
}

// send sends n requests with an API key from an address, and returns how many passed.
func (s *site) send(n int, key, address, path string) (passed int) {
	s.Helper()
	for range n {
		request := harness.Get(s.proxy+path, "X-Api-Key", key, "X-Forwarded-For", address)
		response, err := s.client.Do(request)
		if err != nil {
			s.Error(err)
			return passed
		}
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			passed++
		}
	}
	return passed
}

// checkNamesModel checks that the page names a model without a price.
func (s *site) checkNamesModel(b *tab) {
	s.Helper()
	cluster.Execute(s.T, s.dsn, `INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix,
		user_id, node, reason, status, model)
		SELECT max(time), 0, 1, 'rejected', 'rule/free', 'ann', 'edge-1',
		'no_price', 400, 'gpt-5' FROM rate_limit_audit WHERE user_id = 'ann'`)
	b.await("#lists", `no price of the model "gpt-5"`)
	b.ask()
	b.await("#why-rows", "no price of gpt-5")
}

// The page answers whether limits are enforced, who is refused by which limits, and why a user was refused,
// on a desktop and on a phone. It is accessible, and not wider than the window.
func TestThePageAnswersTheQuestionsOfANight(t *testing.T) {
	for name, window := range map[string]size{"on a desktop": desktop, "on a phone": phone} {
		t.Run(name, func(t *testing.T) { answersOfANight(t, window) })
	}
}

func answersOfANight(t *testing.T, window size) {
	t.Helper()
	s := startSite(t, cluster.Open(t))
	if passed := s.send(12, s.ann, "192.0.2.1", "/reports"); passed != 5 {
		t.Fatalf("%d of 12 requests passed, want 5", passed)
	}
	s.send(30, s.acme, "192.0.2.2", "/")
	b := open(t, s.page, window)

	// Is anything failing open? Which proxies run, and is one behind?
	b.await("#state", "enforced by 1 of 1 proxy")
	b.await("#proxies-list", "edge-1")
	b.await("#proxies-list", "newest")
	check.Equal(t, "the look of the headline",
		value[string](b, "document.getElementById('banner').className"), "enforcing")
	cluster.Execute(t, s.dsn, "INSERT INTO rate_limit_nodes (node, seen) "+
		"VALUES ('edge-2', now() - interval '20 s')")
	b.await("#state", "enforced by 1 of 2 proxies; 1 has not reported for")
	b.await("#state-more", "edge-2 last reported at")
	check.Equal(t, "the look with a silent proxy",
		value[string](b, "document.getElementById('banner').className"), "warning")
	// This proxy has reported no numbers. On a narrow screen, the style hides cells without content.
	b.await("#proxies-list", "edge-2")
	check.Equal(t, "empty cells",
		value[int64](b, "document.querySelectorAll('#proxies-list td:empty').length"), 4)
	cluster.Execute(t, s.dsn, "DELETE FROM rate_limit_nodes WHERE node = 'edge-2'")

	// Who is refused most, and by what?
	b.await(".line.refused .sum", "7 in 1 h") // the history is written
	b.await("#lists", "ann")
	b.await("#lists", "rule/free")
	b.await("#near-list", "free/per_hour")
	b.await("#changes", "rule free: created")

	// Why was ann refused at …?
	b.fill("#why-who", "ann")
	b.fill("#why-at", time.Now().UTC().Format("15:04"))
	b.ask()
	b.await("#why-said", "rule/free")
	b.await("#why-said", "/reports")
	b.await("#why-rows", "0 of 5 left")
	s.checkNamesModel(b)
	if window == desktop {
		s.takePicture(b)
	}
	b.fill("#why-at", "never")
	b.ask()
	b.await("#why-said", `never": must be a time such as 14:05`)
	b.allowProblem("400") // Chromium's own line about the response

	for _, found := range b.auditAccessibility() {
		t.Error(found)
	}
	if wide := value[int64](b, "document.documentElement.scrollWidth"); wide > window.width {
		t.Errorf("the page is %d pixels wide, want %d at most", wide, window.width)
	}
}
