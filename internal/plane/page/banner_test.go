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
func (a *asked) node(name string, report map[string]any) {
	a.Helper()
	text, err := json.Marshal(report)
	if err != nil {
		a.Fatal(err)
	}
	a.exec(`INSERT INTO rate_limit_nodes (node, epoch, live) VALUES ($1, 1, $2)
ON CONFLICT (node) DO UPDATE SET seen = now(), live = excluded.live`, name, string(text))
}

// reportOf is what a proxy with a history reports in or after an outage, or without one.
func reportOf(outage string) map[string]any {
	return map[string]any{
		"kind": "caddy", "outage": outage, "seen": []any{map[string]any{}}, "requests": map[string]any{"web": []int{1, 0, 0, 0, 0, 1}}, "on_error": []string{"allow"},
		"limits": []any{map[string]any{"limit": map[string]any{"Prefix": "web"}, "mode": "enforce", "on_error": "allow"}}, "counts": map[string]int{"batches": 1},
	}
}

// A rule that refuses everybody, because its own amount is 0, is not shown as if all were well.
func TestThePageWarnsOfARuleThatAllowsNothing(t *testing.T) {
	a := ask(t)
	a.node("a/traefik", reportOf(""))
	a.exec("SELECT rate_limit_rule('closed', per_minute => 0)")
	var b bannerOfPage
	a.answer("state", "", &b)
	if notes := strings.Join(b.Banner.Notes, " "); b.Banner.Level != "warn" || !strings.Contains(notes, "The rule closed: per_minute: 0: refuses every request") {
		t.Errorf("%+v", b)
	}
}

// After requests without a decision the page says that it recovers, and then how many passed and when.
func TestThePageRecoversFromAnOutage(t *testing.T) {
	a := ask(t)
	says := func(outage, mode string) (b bannerOfPage) {
		t.Helper()
		await.Within(t, time.Minute, mode, func() bool {
			a.node("edge-1", reportOf(outage))
			b = bannerOfPage{}
			a.answer("state", "", &b)
			return b.Banner.Mode == mode
		})
		return b
	}
	says("", "enforcing")
	if b := says("now", "failing_open").Banner; b.Level != "bad" || !strings.Contains(b.Text, "edge-1 lets requests pass") {
		t.Errorf("during the outage: %+v", b)
	}
	minute := time.Now().UTC().Truncate(time.Minute).Add(-5 * time.Minute)
	for i := range 2 {
		a.exec(`INSERT INTO rate_limit_metrics (granularity, time, prefix, host, route, region, requests, allowed, limited, errors) VALUES ('minute', $1, 'web', '', '', '', 155, 0, 0, 155)`, minute.Add(time.Duration(i)*time.Minute))
	}
	if b := says("over", "recovering").Banner; b.Level != "warn" || b.Headline != "Recovering" || b.Text != "The database decides again for edge-1." {
		t.Errorf("after the outage: %+v", b)
	}
	b := says("", "enforcing").Banner
	want := "310 requests passed without a decision from " + minute.Format("15:04") + " to " + minute.Add(2*time.Minute).Format("15:04 UTC.")
	if len(b.Notes) != 1 || b.Notes[0] != want {
		t.Errorf("later: %+v, want %q", b, want)
	}
	var state struct {
		Traffic struct {
			Outages []struct {
				From, Until time.Time
				Requests    int64
			}
		}
	}
	if a.answer("state", "", &state); len(state.Traffic.Outages) != 1 || !state.Traffic.Outages[0].From.Equal(minute) || state.Traffic.Outages[0].Requests != 310 {
		t.Errorf("the lines: %+v", state)
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
			a.node("a/traefik", reportOf(""))
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
			Recording *bool
			Figures   []struct{ Name, Text string }
		}
	}
	status, text := send(serve(t, "postgres://nobody@127.0.0.1:1/none"), "state", "")
	if err := json.Unmarshal([]byte(text), &state); err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", status, err, text)
	}
	b := state.Banner
	if b.Mode != "database_down" || b.Recording != nil || len(b.Figures) != 6 {
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
