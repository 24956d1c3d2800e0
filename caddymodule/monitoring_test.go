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

// The documents about metrics, alerts and the dashboard, and the tests of the alerts.
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
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// checkByPromtool runs promtool and fails the test if it reports an error.
func checkByPromtool(t *testing.T, input string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	program, err := promtool.Find(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(input)
	if output, err := cmd.CombinedOutput(); err != nil || bytes.Contains(output, []byte("FAILED")) {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}

// startWithMetrics runs a Caddy with each kind of limit, and sends requests so that every metric has a value.
func startWithMetrics(t *testing.T) {
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

// metricsOfCaddy returns the metrics of the running Caddy, and their text in Prometheus's format.
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
	response := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(response,
		httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(response.Body.String()) {
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
	rows := regexp.MustCompile("(?m)^\\| `(caddy_[a-z_]+)` \\| ([a-z]+) \\|([^|]*)\\| ([^|]+) \\|$")
	for _, row := range rows.FindAllStringSubmatch(readFile(t, metricsPage), -1) {
		var labels []string
		for _, label := range regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(row[3], -1) {
			labels = append(labels, label[1])
		}
		slices.Sort(labels)
		metrics[row[1]] = exported{row[2], labels}
	}
	return metrics
}

// The page has each metric with its type and its labels, and no others.
func TestPageListsMetrics(t *testing.T) {
	startWithMetrics(t)
	metrics, text := metricsOfCaddy(t)
	page := metricsOfPage(t)
	for name, m := range metrics {
		if p, ok := page[name]; !ok || p.kind != m.kind || !slices.Equal(p.labels, m.labels) {
			t.Errorf("%s has %s %v, want %v as Caddy exports it", metricsPage, name, p, m)
		}
	}
	for name := range page {
		if _, ok := metrics[name]; !ok {
			t.Errorf("%s has %s, which Caddy does not export", metricsPage, name)
		}
	}
	if strings.Contains(text, "secret") {
		t.Errorf("the metrics contain a user or a path, want neither:\n%s", text)
	}
	checkByPromtool(t, text, "check", "metrics")
}

// reference is a use of a metric in a file: the labels that group its sum, the name, and the labels that are
// selected.
var reference = regexp.MustCompile(
	`(?:by \(([a-z, ]+)\) \((?:rate|increase)\()?(caddy_pg_ratelimit_[a-z_]+)(\{[^}]*\})?`)

// checkReferences checks that Caddy exports the metrics and labels that a file uses.
func checkReferences(t *testing.T, path, text string, metrics map[string]exported) {
	t.Helper()
	uses := reference.FindAllStringSubmatch(text, -1)
	if len(uses) < 10 {
		t.Errorf("%s uses %d metrics, want at least 10", path, len(uses))
	}
	for _, use := range uses {
		name := use[2]
		m, ok := metrics[name]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			base, found := strings.CutSuffix(name, suffix)
			if found && metrics[base].kind == "histogram" {
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
			// Prometheus adds the label instance, and the buckets of histograms have the label le.
			isAdded := label == "instance" || label == "le" && m.kind == "histogram"
			if !isAdded && !slices.Contains(m.labels, label) {
				t.Errorf("%s uses %s, which has no label %s", path, use[0], label)
			}
		}
	}
}

// The alerts and their tests use metrics that Caddy exports.
func TestAlertsUseMetrics(t *testing.T) {
	startWithMetrics(t)
	metrics, _ := metricsOfCaddy(t)
	for _, path := range []string{alertRules, alertTests} {
		checkReferences(t, path, readFile(t, path), metrics)
	}
}

// Alerts fire only when they should. Each one has a severity, a summary, a description of the remedy, and a
// test in which it fires.
func TestAlerts(t *testing.T) {
	checkByPromtool(t, "", "check", "rules", alertRules)
	checkByPromtool(t, "", "test", "rules", alertTests)
	rules := strings.Split(readFile(t, alertRules), "- alert: ")[1:]
	if len(rules) < 12 {
		t.Errorf("%s has %d alerts, want at least 12", alertRules, len(rules))
	}
	tests := readFile(t, alertTests)
	for _, rule := range rules {
		name, _, _ := strings.Cut(rule, "\n")
		for _, field := range []string{"severity: ", "summary: ", "description: "} {
			if strings.Count(rule, field) != 1 {
				t.Errorf("%s does not have one %s", name, field)
			}
		}
		if !strings.Contains(tests, `ALERTS{alertname="`+name+`",alertstate="firing",`) {
			t.Errorf("%s has no test in which %s fires", alertTests, name)
		}
	}
}
