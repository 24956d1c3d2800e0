package page_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
)

// bannerOfPage is a part of the state.
type bannerOfPage struct {
	Banner struct {
		Mode, Level, Headline, Text string
		Notes                       []string
	}
}

// node writes a proxy into the registry.
func (a *asked) node(name string) {
	a.Helper()
	a.exec("INSERT INTO rate_limit_nodes (node, epoch) VALUES ($1, 1) ON CONFLICT (node) DO UPDATE SET seen = now()", name)
}

// A rule that refuses everybody, because its own amount is 0, is not shown as if all were well.
func TestThePageWarnsOfARuleThatAllowsNothing(t *testing.T) {
	a := ask(t)
	a.node("a/traefik")
	a.exec("SELECT rate_limit_rule('closed', per_minute => 0)")
	var b bannerOfPage
	a.answer("state", "", &b)
	if notes := strings.Join(b.Banner.Notes, " "); b.Banner.Level != "warn" || !strings.Contains(notes, "The rule closed: per_minute: 0: refuses every request") {
		t.Errorf("%+v", b)
	}
}

// Requests without a decision are said at once, and later how many they were and when.
func TestThePageSaysThatRequestsHadNoDecision(t *testing.T) {
	a := ask(t)
	a.node("edge-1")
	minute := time.Now().UTC().Truncate(time.Minute)
	outage := func(ago time.Duration) string {
		a.exec("TRUNCATE rate_limit_metrics")
		for i := range 2 {
			a.exec(`INSERT INTO rate_limit_metrics (granularity, time, prefix, host, route, region, requests, errors)
VALUES ('minute', $1, 'web', '', '', '', 155, 155)`, minute.Add(time.Duration(i)*time.Minute-ago))
		}
		return "310 requests had no decision from " + minute.Add(-ago).Format("15:04") + " to " + minute.Add(2*time.Minute-ago).Format("15:04 UTC.")
	}
	says := func(mode string) (b bannerOfPage) {
		t.Helper()
		await.Within(t, time.Minute, mode, func() bool {
			a.node("edge-1")
			b = bannerOfPage{}
			a.answer("state", "", &b)
			return b.Banner.Mode == mode
		})
		return b
	}
	want := outage(time.Minute)
	if b := says("requests_without_a_decision").Banner; b.Level != "bad" || b.Text != want {
		t.Errorf("during the outage: %+v, want %q", b, want)
	}
	want = outage(10 * time.Minute)
	if b := says("enforcing").Banner; b.Level != "ok" || len(b.Notes) != 1 || b.Notes[0] != want {
		t.Errorf("later: %+v, want %q", b, want)
	}
}

// A proxy that has ended changes nothing, one that vanished is missed for ten minutes or until one of its host decides,
// and one that cannot decide is said as long as it runs.
func TestWhichProxiesChangeTheColourOfThePage(t *testing.T) {
	for name, one := range map[string]struct{ nodes, level, mode, says string }{
		"ended":                        {"('b', '1 min', now(), NULL)", "ok", "enforcing", ""},
		"vanished":                     {"('b/caddy', '9 min', NULL, NULL)", "warn", "enforcing", "b/caddy is gone: it was last seen 9m"},
		"vanished long ago":            {"('b/caddy', '11 min', NULL, NULL)", "ok", "enforcing", ""},
		"another of its host decides":  {"('a/caddy', '1 min', NULL, NULL)", "ok", "enforcing", ""},
		"one that cannot decide":       {"('b', '1 s', NULL, 'GRANT SELECT ON rate_limit_ephemeral TO b;')", "bad", "cannot_decide", "b lacks privileges. Run: GRANT SELECT ON rate_limit_ephemeral TO b;"},
		"one that could not, and left": {"('b', '1 h', now(), 'GRANT SELECT ON rate_limit_ephemeral TO b;')", "ok", "enforcing", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := ask(t)
			a.node("a/traefik")
			a.exec("INSERT INTO rate_limit_nodes (node, epoch, seen, ended, cannot) SELECT v.node, 1, now() - v.ago::interval, v.ended::timestamptz, v.cannot FROM (VALUES " + one.nodes + ") AS v(node, ago, ended, cannot)")
			var b bannerOfPage
			a.answer("state", "", &b)
			notes := strings.Join(b.Banner.Notes, " ")
			if b.Banner.Level != one.level || b.Banner.Mode != one.mode || !strings.Contains(notes, one.says) || one.says == "" && notes != "" {
				t.Errorf("%+v, want %+v", b, one)
			}
		})
	}
}

// Of a database that has never answered, nothing is claimed.
func TestThePageClaimsNothingOfADatabaseThatNeverAnswered(t *testing.T) {
	var state struct {
		Banner struct {
			Mode      string
			Recording bool
			Figures   []struct{ Name, Text string }
		}
	}
	status, text := send(serve(t, "postgres://nobody@127.0.0.1:1/none"), "state", "")
	if err := json.Unmarshal([]byte(text), &state); err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", status, err, text)
	}
	b := state.Banner
	if b.Mode != "database_down" || b.Recording || len(b.Figures) != 5 {
		t.Fatalf("the banner is %s", text)
	}
	for _, figure := range b.Figures {
		if figure.Text != "–" && figure.Text != "not known" && figure.Name+figure.Text != "Databasedown" {
			t.Errorf("%s is %q", figure.Name, figure.Text)
		}
	}
}

// Errors of the driver have several lines, and the page has one.
func TestErrorsHaveNoLineBreaks(t *testing.T) {
	var state struct {
		Banner struct{ Database struct{ Error string } }
	}
	api := serve(t, "postgres://nobody@127.0.0.1:1,127.0.0.1:2/none")
	_, text := send(api, "state", "")
	if err := json.Unmarshal([]byte(text), &state); err != nil || state.Banner.Database.Error == "" || strings.ContainsAny(state.Banner.Database.Error, "\n\t") {
		t.Errorf("%v: %q", err, state.Banner.Database.Error)
	}
	var failed struct{ Error string }
	_, text = send(api, "bans", "")
	if err := json.Unmarshal([]byte(text), &failed); err != nil || failed.Error == "" || strings.ContainsAny(failed.Error, "\n\t") {
		t.Errorf("%v: %q", err, failed.Error)
	}
}
