package caddymodule_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/promtool"
)

// Files for those who watch Caddy.
const (
	metricsPage   = "../docs/metrics.md"
	alertRules    = "../docs/alerts.yml"
	alertTests    = "testdata/alerts_test.yml"
	dashboardFile = "../docs/grafana-dashboard.json"
)

// exported is a metric as Caddy exports it.
type exported struct {
	kind   string // counter, gauge or histogram
	labels []string
}

// readFile returns the text of a file.
func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// check runs promtool, and reports what it complains about.
func check(t *testing.T, input string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	program, err := promtool.Find(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(input)
	if said, err := cmd.CombinedOutput(); err != nil || bytes.Contains(said, []byte("FAILED")) {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, said)
	}
}

// startMeasured runs a Caddy with each kind of limit, and sends requests until every metric has a
// value.
func startMeasured(t *testing.T) {
	t.Helper()
	dsn := withPolicy(t,
		policytest.People+"SELECT rate_limit_rule('plan', tiers => '{anonymous}', per_hour => 2);")
	c := start(t, `
		:PORT {
			pg_ratelimit PREFIX {
				dsn `+dsn+`
				limit 100 1h
				settle bytes
				timeout 10s
				policy {
					user {header.X-User}
				}
			}
		}`)
	c.expect(http.StatusOK, "/", "X-User", "secret-user")
	c.expect(http.StatusOK, "/secret-path", "X-User", "secret-user")
	c.expect(http.StatusTooManyRequests, "/", "X-User", "secret-user")
}

// metricsOfCaddy returns the metrics of the running Caddy, and the text in which Prometheus gets
// them.
func metricsOfCaddy(t *testing.T) (metrics map[string]exported, text string) {
	t.Helper()
	running := caddy.ActiveContext()
	registry := running.GetMetricsRegistry()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	metrics = map[string]exported{}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "caddy_pg_ratelimit_") {
			continue
		}
		m := exported{kind: strings.ToLower(family.GetType().String())}
		for _, label := range family.GetMetric()[0].GetLabel() {
			m.labels = append(m.labels, label.GetName())
		}
		metrics[family.GetName()] = m
	}
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer,
		httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		if strings.Contains(line, "caddy_pg_ratelimit_") {
			text += line
		}
	}
	return metrics, text
}

// metricsOfPage returns the metrics in the table of the page.
func metricsOfPage(t *testing.T) map[string]exported {
	t.Helper()
	metrics := map[string]exported{}
	for _, row := range regexp.MustCompile(
		"(?m)^\\| `(caddy_[a-z_]+)` \\| ([a-z]+) \\|([^|]*)\\| ([^|]+) \\|$").
		FindAllStringSubmatch(readFile(t, metricsPage), -1) {
		var labels []string
		for _, label := range regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(row[3], -1) {
			labels = append(labels, label[1])
		}
		slices.Sort(labels)
		metrics[row[1]] = exported{row[2], labels}
	}
	return metrics
}

// TestEachMetricIsOnThePage with its type and its labels, and the page has no other.
func TestEachMetricIsOnThePage(t *testing.T) {
	startMeasured(t)
	metrics, text := metricsOfCaddy(t)
	page := metricsOfPage(t)
	for name, m := range metrics {
		if p, ok := page[name]; !ok || p.kind != m.kind || !slices.Equal(p.labels, m.labels) {
			t.Errorf("Caddy exports %s %v, and %s has %v", name, m, metricsPage, p)
		}
	}
	for name := range page {
		if _, ok := metrics[name]; !ok {
			t.Errorf("%s has %s, which Caddy does not export", metricsPage, name)
		}
	}
	if strings.Contains(text, "secret") {
		t.Errorf("the metrics tell a user or a path:\n%s", text)
	}
	check(t, text, "check", "metrics")
}

// reference is a use of a metric in a file: the labels that group its sum, the name, and the labels that are
// selected.
var reference = regexp.MustCompile(
	`(?:by \(([a-z, ]+)\) \((?:rate|increase)\()?(caddy_pg_ratelimit_[a-z_]+)(\{[^}]*\})?`)

// checkReferences compares the metrics and labels that a file uses with those of Caddy.
func checkReferences(t *testing.T, path, text string, metrics map[string]exported) {
	t.Helper()
	found := reference.FindAllStringSubmatch(text, -1)
	if len(found) < 10 {
		t.Errorf("%s uses %d metrics", path, len(found))
	}
	for _, use := range found {
		name := use[2]
		m, ok := metrics[name]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, is := strings.CutSuffix(name, suffix); is && metrics[base].kind == "histogram" {
				m, ok = metrics[base], true
			}
		}
		if !ok {
			t.Errorf("%s uses %s, which Caddy does not export", path, name)
			continue
		}
		labels := strings.FieldsFunc(use[1], func(r rune) bool { return r == ',' || r == ' ' })
		for _, label := range regexp.MustCompile(`([a-z]+)[=!]~?\\?"`).FindAllStringSubmatch(use[3], -1) {
			labels = append(labels, label[1])
		}
		for _, label := range labels {
			// Prometheus adds the label instance.
			if label != "instance" && (label != "le" || m.kind != "histogram") && !slices.Contains(m.labels,
				label) {
				t.Errorf("%s uses %s, which has no label %s", path, use[0], label)
			}
		}
	}
}

// TestAlertsUseMetricsThatExist, and so do the tests of the alerts.
func TestAlertsUseMetricsThatExist(t *testing.T) {
	startMeasured(t)
	metrics, _ := metricsOfCaddy(t)
	for _, path := range []string{alertRules, alertTests} {
		checkReferences(t, path, readFile(t, path), metrics)
	}
}

// TestAlerts fire when they should, and not otherwise. Each has a severity, a summary, a description
// of what to do, a case in which it is tested, and its name on the page.
func TestAlerts(t *testing.T) {
	check(t, "", "check", "rules", alertRules)
	check(t, "", "test", "rules", alertTests)
	rules := strings.Split(readFile(t, alertRules), "- alert: ")[1:]
	if len(rules) < 12 {
		t.Errorf("%d alerts", len(rules))
	}
	tests := readFile(t, alertTests)
	for _, rule := range rules {
		name, _, _ := strings.Cut(rule, "\n")
		for _, field := range []string{"severity: ", "summary: ", "description: "} {
			if strings.Count(rule, field) != 1 {
				t.Errorf("%s has no %s", name, field)
			}
		}
		if !strings.Contains(tests, `ALERTS{alertname="`+name+`",alertstate="firing",`) {
			t.Errorf("%s has no test in which %s fires", alertTests, name)
		}
	}
}
