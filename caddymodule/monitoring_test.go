package caddymodule_test

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/page"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/promtool"
)

// The files about metrics: their page, the alerts and the tests of the alerts, and the dashboard.
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
	dsn := policytest.Open(t,
		policytest.People+"SELECT rate_limit_rule('plan', tiers => '{anonymous}', per_hour => 2);"+
			"SELECT rate_limit_rule('over', per_hour => 1, on_exceed => 'overage');")
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

// documentedMetrics returns the metrics in the table of the page.
func documentedMetrics(t *testing.T) map[string]exported {
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

// The page lists each metric of Caddy, with its type and its labels, and no others. No metric contains a user
// or a path.
func TestPageListsMetrics(t *testing.T) {
	startWithMetrics(t)
	metrics, text := metricsOfCaddy(t)
	documented := documentedMetrics(t)
	for name, m := range metrics {
		if p := documented[name]; !reflect.DeepEqual(p, m) {
			t.Errorf("%s has %s %v, want %v as Caddy exports it", metricsPage, name, p, m)
		}
	}
	for name := range documented {
		if _, ok := metrics[name]; !ok {
			t.Errorf("%s has %s, which Caddy does not export", metricsPage, name)
		}
	}
	if strings.Contains(text, "secret") {
		t.Errorf("the metrics contain a user or a path, want neither:\n%s", text)
	}
	checkByPromtool(t, text, "check", "metrics")
}

// textOfPage returns the metrics of a page in Prometheus's format.
func textOfPage(t *testing.T) string {
	t.Helper()
	dsn := cluster.Open(t, schema.File)
	cluster.Execute(t, dsn, `INSERT INTO rate_limit_nodes (node, report)
		VALUES ('edge', '{"version": "v1", "applied": "1:1:"}');
		INSERT INTO rate_limit_nodes (node, seen, report)
		VALUES ('late', now() + interval '11 s', '{"version": "v1", "applied": "1:1:"}');
		INSERT INTO rate_limit_tiers (tier) VALUES ('new');
		SELECT rate_limit_upkeep();
		INSERT INTO rate_limit_metrics (granularity, time, prefix, requests, admitted, last_request)
		VALUES ('minute', date_trunc('minute', now()) + interval '1 minute', 'web', 1, 1, now())`)
	s, err := page.New(page.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1/metrics", nil))
	// Neither proxy has applied the new tier, but only the second has had 10 seconds to apply it.
	if !regexp.MustCompile(`behind\{node="edge"\} 0\n.*behind\{node="late"\} 1\n`).Match(w.Body.Bytes()) {
		t.Errorf("got the metrics\n%s\nwant changes behind for the proxy late only", w.Body)
	}
	return w.Body.String()
}

// metricsOfPage returns the metrics that a page exports, without their kinds.
func metricsOfPage(t *testing.T) map[string]exported {
	t.Helper()
	metrics := map[string]exported{}
	for _, sample := range regexp.MustCompile(`(?m)^(pg_ratelimit_[a-z_]+)(\{.*\})? `).
		FindAllStringSubmatch(textOfPage(t), -1) {
		metrics[sample[1]] = exported{labels: labelsIn(sample[2])}
	}
	return metrics
}

// labelsIn returns the names in a list of labels with values, or in a selection by labels.
func labelsIn(text string) (names []string) {
	for _, label := range regexp.MustCompile(`([a-z]+)[=!]~?\\?"`).FindAllStringSubmatch(text, -1) {
		names = append(names, label[1])
	}
	return names
}

// reference matches a use of a metric in a file, and captures the labels that group its sum, its name, and
// the labels that are selected.
var reference = regexp.MustCompile(
	`(?:by \(([a-z, ]+)\) \((?:(?:rate|increase)\()?)?((?:caddy_)?pg_ratelimit_[a-z_]+)(\{[^}]*\})?`)

// The alerts, their tests and the dashboard use only metrics and labels that Caddy or the page exports. They
// use metrics of the page, too, because a Traefik exports none itself.
func TestAlertsAndDashboardUseMetrics(t *testing.T) {
	startWithMetrics(t)
	metrics, _ := metricsOfCaddy(t)
	dashboard := readFile(t, dashboardFile)
	for name := range metrics {
		if !strings.Contains(dashboard, name) {
			t.Errorf("no panel shows %s, want one", name)
		}
	}
	maps.Copy(metrics, metricsOfPage(t))
	for _, path := range []string{alertRules, alertTests, dashboardFile} {
		uses, ofPage := reference.FindAllStringSubmatch(readFile(t, path), -1), map[string]bool{}
		for _, use := range uses {
			checkReference(t, path, use, metrics)
			if strings.HasPrefix(use[2], "pg_ratelimit_") {
				ofPage[use[2]] = true
			}
		}
		if len(uses) < 10 || len(ofPage) < 4 {
			t.Errorf("%s uses metrics %d times, and %d of the page, want at least 10 and 4", path, len(uses),
				len(ofPage))
		}
	}
}

// checkReference checks that use, a match of reference in a file, has the name and the labels of one of
// metrics.
func checkReference(t *testing.T, path string, use []string, metrics map[string]exported) {
	t.Helper()
	m, ok := metrics[use[2]]
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		base, found := strings.CutSuffix(use[2], suffix)
		if found && metrics[base].kind == "histogram" {
			m, ok = metrics[base], true
		}
	}
	if !ok {
		t.Errorf("%s uses %s, which neither Caddy nor the page exports", path, use[2])
		return
	}
	labels := strings.FieldsFunc(use[1], func(r rune) bool { return r == ',' || r == ' ' })
	for _, label := range append(labels, labelsIn(use[3])...) {
		// Prometheus adds the label instance, and the buckets of histograms have the label le.
		isAdded := label == "instance" || label == "le" && m.kind == "histogram"
		if !isAdded && !slices.Contains(m.labels, label) {
			t.Errorf("%s uses %s, which has no label %s", path, use[0], label)
		}
	}
}

// The tests of the alerts pass: each alert fires when it should, and only then. Each alert has a severity, a
// summary, a description of the remedy, and a test in which it fires.
func TestAlertsFireOnlyWhenTheyShould(t *testing.T) {
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
