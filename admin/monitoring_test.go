package admin_test

import (
	"bytes"
	"context"
	"maps"
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

	"github.com/pgratelimit/pg-ratelimit/admin/page"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/promtool"
)

// The files about metrics: their page, the alerts and the tests of the alerts, and the dashboard.
const (
	metricsPage   = "../docs/generated/metrics.md"
	alertsPage    = "../docs/generated/alerts.md"
	alertRules    = "../docs/alerts.yml"
	alertTests    = "testdata/alerts_test.yml"
	dashboardFile = "../docs/grafana-dashboard.json"
)

// exported is a metric as Caddy exports it.
type exported struct {
	kind   string // counter, gauge or histogram
	labels []string
	help   string
}

// rowsOf returns the rows of metrics in a table of the page.
func rowsOf(metrics map[string]exported) (rows string) {
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		labels := strings.Join(metrics[name].labels, "`, `")
		if labels != "" {
			labels = "`" + labels + "`"
		}
		m := metrics[name]
		rows += "| `" + name + "` | " + m.kind + " | " + labels + " | " + m.help + " |\n"
	}
	return rows
}

// checkLabels checks that the page explains the labels of metrics, and no others.
func checkLabels(t *testing.T, lists ...map[string]exported) {
	t.Helper()
	var used, explained []string
	for _, metrics := range lists {
		for _, m := range metrics {
			used = append(used, m.labels...)
		}
	}
	_, labels, _ := strings.Cut(readFile(t, metricsPage), "\n## Labels\n")
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllStringSubmatch(labels, -1) {
		explained = append(explained, row[1])
	}
	slices.Sort(used)
	used = slices.Compact(used)
	if slices.Sort(explained); !slices.Equal(used, explained) {
		t.Errorf("the page explains the labels %q, want those of the metrics, %q", explained, used)
	}
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
	c := caddytest.Start(t, `
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
	c.Expect(http.StatusOK, "/", "X-User", "secret-user")
	c.Expect(http.StatusOK, "/secret-path", "X-User", "secret-user")
	c.Expect(http.StatusTooManyRequests, "/", "X-User", "secret-user")
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
		m := exported{kind: strings.ToLower(family.GetType().String()), help: family.GetHelp()}
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

// The page lists each metric of Caddy and of the page of all proxies, with its type and its labels. No metric
// contains a user or a path.
func TestPageListsMetrics(t *testing.T) {
	startWithMetrics(t)
	metrics, text := metricsOfCaddy(t)
	ofPage := metricsOfPage(t)
	golden.CheckPage(t, metricsPage, "testdata/metrics.md",
		map[string]string{"CADDY": rowsOf(metrics), "PAGE": rowsOf(ofPage)})
	checkLabels(t, metrics, ofPage)
	if strings.Contains(text, "secret") {
		t.Errorf("the metrics contain a user or a path, want neither:\n%s", text)
	}
	checkByPromtool(t, text, "check", "metrics")
}

// textOfPage returns the metrics of a page in Prometheus's format.
func textOfPage(t *testing.T) string {
	t.Helper()
	dsn := cluster.Open(t, schema.File)
	cluster.Execute(t, dsn, readFile(t, "testdata/of_page.sql"))
	s, err := page.New(page.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1/metrics", nil))
	// Neither proxy has applied the new tier and price, but only the second has had 10 seconds for that.
	if !regexp.MustCompile(`behind\{node="edge"\} 0\n.*behind\{node="late"\} 2\n`).Match(w.Body.Bytes()) {
		t.Errorf("got the metrics\n%s\nwant changes behind for the proxy late only", w.Body)
	}
	return w.Body.String()
}

// metricsOfPage returns the metrics that a page exports.
func metricsOfPage(t *testing.T) map[string]exported {
	t.Helper()
	metrics, text := map[string]exported{}, textOfPage(t)
	for _, sample := range regexp.MustCompile(`(?m)^(pg_ratelimit_[a-z_]+)(\{.*\})? `).
		FindAllStringSubmatch(text, -1) {
		kind := regexp.MustCompile(`(?m)^# TYPE ` + sample[1] + ` (.*)$`).FindStringSubmatch(text)
		help := regexp.MustCompile(`(?m)^# HELP ` + sample[1] + ` (.*)$`).FindStringSubmatch(text)
		if kind == nil || help == nil {
			t.Fatalf("the page has no type or no help of %s:\n%s", sample[1], text)
		}
		metrics[sample[1]] = exported{kind: kind[1], labels: labelsIn(sample[2]), help: help[1]}
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
	rows, spaces := "", regexp.MustCompile(`\s+`)
	values := regexp.MustCompile(`\{\{ [$](?:labels\.)?(\w+)[^}]* \}\}`)
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
		_, text, _ := strings.Cut(rule, "summary: ")
		text, _, _ = strings.Cut(text, "\n  - name:") // the next group
		text, _, _ = strings.Cut(text, "\n  #")
		summary, description, _ := strings.Cut(text, "description: >-")
		text = spaces.ReplaceAllString(strings.Trim(strings.TrimSpace(summary), `"`)+" | "+description, " ")
		rows += "| `" + name + "` | " + strings.TrimSpace(values.ReplaceAllString(text, "($1)")) + " |\n"
		if !strings.Contains(tests, `ALERTS{alertname="`+name+`",alertstate="firing",`) {
			t.Errorf("%s has no test in which %s fires", alertTests, name)
		}
	}
	golden.CheckPage(t, alertsPage, "testdata/alerts.md", map[string]string{"ALERTS": rows})
}
