package admin_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
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
	Expr   string // the query for Prometheus
	RawSQL string // the query for Postgres
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

// Prometheus accepts the expressions in the dashboard's queries.
func TestDashboardExpressionsAreValid(t *testing.T) {
	// promtool reads the expressions as recording rules.
	rules := "groups:\n- name: dashboard\n  rules:\n"
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			if q.Expr == "" {
				continue
			}
			expr := promQL.Replace(q.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("%s uses an unknown variable: %s", p.Title, q.Expr)
			}
			rules += fmt.Sprintf("  - record: panel_%d_%s\n    expr: '%s'\n", p.ID, q.RefID,
				strings.ReplaceAll(expr, "'", "''"))
		}
	}
	path := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(path, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	checkByPromtool(t, "", "check", "rules", path)
}

// promQL replaces the dashboard's variables.
var promQL = strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*", "$prefix", ".*")

// Postgres accepts the dashboard's queries in SQL. The queries of graphs select the time first.
func TestDashboardQueriesRun(t *testing.T) {
	dsn := cluster.Open(t)
	cluster.Execute(t, dsn, schema.File)
	values := strings.NewReplacer("$__timeFilter(time)", "time BETWEEN now() - interval '1 hour' AND now()",
		"${granularity}", "minute")
	queries := 0
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			if q.RawSQL == "" {
				continue
			}
			queries++
			text := values.Replace(q.RawSQL)
			if variable := regexp.MustCompile(`\$\S+`).FindString(text); variable != "" {
				t.Errorf("%s uses the unknown variable %s", p.Title, variable)
			}
			if q.Format == "time_series" && !strings.HasPrefix(text, "SELECT time, ") {
				t.Errorf("%s: the query of a graph is %s, want SELECT time first", p.Title, text)
			}
			cluster.Execute(t, dsn, text)
		}
	}
	if queries < 4 {
		t.Errorf("the dashboard has %d queries in SQL, want at least 4", queries)
	}
}
