package reports

import (
	"net/url"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

var pooled = []report{
	{"R62", "prisma/orm#10841", append(poolerRefuses("options", "-csearch_path=limits",
		"search_path", "limits", "statement_timeout", "1000"), site{handler: "dsn POOLER",
		zones: []string{"limit 2 1h"}, asks: []ask{{n: 4, want: "200×2 429×2"}}})},
	{"R63", "animir/node-rate-limiter-flexible#195, #288", []site{
		{only: "caddy", handler: "dsn POOLER", zones: []string{"prefix r63\nkey all\nlimit 10 1h"},
			check: func(v *visit) {
				check.Equal(v, "the statuses", v.load(20, 100, "", nil), "200×10 429×90")
			}},
		{only: "traefik", handler: "dsn POOLER", zones: []string{"prefix r63\nkey all\nlimit 10 1h"},
			asks: []ask{{n: 20, want: "429×20"}}, check: withoutPrepared},
	}},
}

// poolerRefuses returns a site for each parameter, which the pooler refuses. The log, state and the page say
// that it is an error of the configuration. pairs has names and values.
func poolerRefuses(pairs ...string) (sites []site) {
	for i := 0; i < len(pairs); i += 2 {
		parameter := "&" + pairs[i] + "=" + url.QueryEscape(pairs[i+1])
		sites = append(sites, site{handler: "dsn POOLER" + parameter,
			zones: []string{"limit 2 1h"}, asks: []ask{{want: "503×1"}},
			check: func(v *visit) {
				state, err := runCommand(v, v.pooler+parameter, "state")
				if err == nil {
					v.Errorf("state succeeds")
				}
				for what, text := range map[string]string{"the log": v.proxy.Log(), "state": state,
					"the page": pageOf(v, v.pooler+parameter)} {
					if !strings.Contains(unquote(text), "the server refuses the configuration: ") ||
						!strings.Contains(text, "unsupported startup parameter: "+pairs[i]) {
						v.Errorf("%s does not name %s as an error of the configuration: %.2000s",
							what, pairs[i], text)
					}
				}
			}})
	}
	return sites
}

// pageOf returns the answer of a page of a database to the question of its state.
func pageOf(t testing.TB, dsn string) string {
	t.Helper()
	address := harness.FreeAddress(t)
	page := harness.Start(t, harness.Program{Name: "the page", Path: harness.Caddy(t, "../.."),
		Args: []string{"pg-ratelimit", "page", "--listen", address}, Env: []string{"DATABASE_URL=" + dsn}})
	page.AwaitAddress(t, address)
	return harness.Ask(t, harness.Get("http://"+address+"/api/state")).Body
}

// withoutPrepared checks that no statement failed because another session had prepared it.
func withoutPrepared(v *visit) {
	if log := v.proxy.Log(); strings.Contains(log, "prepared statement") {
		v.Errorf("the log has an error about prepared statements")
	}
}
