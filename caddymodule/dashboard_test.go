package caddymodule_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// dashboard is a dashboard of Grafana, with the fields that the tests check.
type dashboard struct{ Panels []panel }

type panel struct {
	ID      int
	Title   string
	Targets []target
}

// target is a query of a panel.
type target struct {
	RefID  string
	Expr   string // for Prometheus
	RawSQL string // for Postgres
	Format string
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	if err := json.Unmarshal([]byte(readFile(t, dashboardFile)), &d); err != nil {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	return d
}

// TestDashboardUsesMetricsThatExist, all of them, in expressions that Prometheus can read.
func TestDashboardUsesMetricsThatExist(t *testing.T) {
	startMeasured(t)
	metrics, _ := metricsOfCaddy(t)
	checkReferences(t, dashboardFile, readFile(t, dashboardFile), metrics)
	text := readFile(t, dashboardFile)
	for name := range metrics {
		if !strings.Contains(text, name) {
			t.Errorf("no panel shows %s", name)
		}
	}
	// promtool reads the expressions as recording rules.
	rules := "groups:\n- name: dashboard\n  rules:\n"
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			if q.Expr == "" {
				continue
			}
			expr := promQL.Replace(q.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("%s uses a variable that is not there: %s", p.Title, q.Expr)
			}
			rules += fmt.Sprintf("  - record: panel_%d_%s\n    expr: '%s'\n", p.ID, q.RefID,
				strings.ReplaceAll(expr, "'", "''"))
		}
	}
	path := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(path, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	check(t, "", "check", "rules", path)
}

// promQL replaces the variables of the dashboard.
var promQL = strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*", "$prefix", ".*")

// TestDashboardAsksTheDatabase: Postgres understands the queries of the dashboard, and those for a
// graph have a time first.
func TestDashboardAsksTheDatabase(t *testing.T) {
	dsn := cluster.Open(t)
	cluster.Execute(t, dsn, schema.History)
	values := strings.NewReplacer("$__timeFilter(time)", "time BETWEEN now() - interval '1 hour' AND now()",
		"${granularity}", "minute")
	asked := 0
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			if q.RawSQL == "" {
				continue
			}
			asked++
			text := values.Replace(q.RawSQL)
			if left := regexp.MustCompile(`\$\S+`).FindString(text); left != "" {
				t.Errorf("%s: %s is not replaced", p.Title, left)
			}
			if q.Format == "time_series" && !strings.HasPrefix(text, "SELECT time, ") {
				t.Errorf("%s: a graph needs a time: %s", p.Title, text)
			}
			cluster.Execute(t, dsn, text)
		}
	}
	if asked < 4 {
		t.Errorf("%d queries, want those of the last row", asked)
	}
}
