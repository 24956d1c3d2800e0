package page_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/page"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// pageMetrics returns the labels of the page's metrics, by the metric's name.
func pageMetrics(t *testing.T) map[string][]string {
	t.Helper()
	dsn := cluster.Open(t, schema.File)
	cluster.Execute(t, dsn, `INSERT INTO rate_limit_nodes (node, report)
		VALUES ('edge', '{"version": "v1", "applied_seq": 0}');
		SELECT rate_limit_upkeep();
		INSERT INTO rate_limit_metrics (granularity, time, prefix, requests, allowed, last_request)
		VALUES ('minute', date_trunc('minute', now()) + interval '1 minute', 'web', 1, 1, now())`)
	s, err := page.New(page.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1/metrics", nil))
	metrics := map[string][]string{}
	for _, line := range regexp.MustCompile(`(?m)^(pg_ratelimit_[a-z_]+)(\{.*\})? `).
		FindAllStringSubmatch(w.Body.String(), -1) {
		metrics[line[1]] = nil
		for _, label := range regexp.MustCompile(`([a-z]+)="`).FindAllStringSubmatch(line[2], -1) {
			metrics[line[1]] = append(metrics[line[1]], label[1])
		}
	}
	return metrics
}

// The alerts, their tests and the dashboard use only metrics and labels of the page, so they work for Traefik
// alone.
func TestAlertsAndTheDashboardUseMetricsOfThePage(t *testing.T) {
	metrics := pageMetrics(t)
	use := regexp.MustCompile(
		`(?:by \(([a-z, ]+)\) \((?:rate\()?)?(caddy_)?(pg_ratelimit_[a-z_]+)(\{[^}]*\})?`)
	for path, minMetrics := range map[string]int{"../../../docs/alerts.yml": 4,
		"../../../docs/grafana-dashboard.json": 4, "../../../caddymodule/testdata/alerts_test.yml": 4} {
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		used := map[string]bool{}
		for _, found := range use.FindAllStringSubmatch(string(file), -1) {
			if found[2] != "" {
				continue
			}
			name := found[3]
			used[name] = true
			hasLabels, ok := metrics[name]
			if !ok {
				t.Errorf("%s uses %s, want a metric of the page", path, name)
			}
			labels := strings.FieldsFunc(found[1], func(r rune) bool { return r == ',' || r == ' ' })
			for _, label := range regexp.MustCompile(`([a-z]+)[=!]~?\\?"`).FindAllStringSubmatch(found[4],
				-1) {
				labels = append(labels, label[1])
			}
			for _, label := range labels {
				if label != "instance" && !slices.Contains(hasLabels, label) { // Prometheus adds instance
					t.Errorf("%s uses %s with the label %s, want one of %q", path, found[0], label, hasLabels)
				}
			}
		}
		if len(used) < minMetrics {
			t.Errorf("%s uses %d metrics of the page, want at least %d", path, len(used), minMetrics)
		}
	}
}
