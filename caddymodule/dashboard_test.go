package caddymodule_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// dashboard is what Grafana reads of a dashboard.
type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type string }
	}
	Panels []panel
}

type panel struct {
	ID          int
	Type, Title string
	Description string
	GridPos     struct{ X, Y, W, H int }
	Datasource  datasource
	Targets     []target
}

// target is a query of a panel.
type target struct {
	RefID      string
	Datasource datasource
	Expr       string // for Prometheus
	RawSQL     string // for Postgres
	Format     string
}

type datasource struct{ Type, UID string }

// The data sources of panels, by variable.
var (
	prometheusSource = datasource{"prometheus", "${prometheus}"}
	postgresSource   = datasource{"grafana-postgresql-datasource", "${postgres}"}
)

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	if err := json.Unmarshal([]byte(readFile(t, dashboardFile)), &d); err != nil {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	return d
}

// TestDashboardIsWellFormed: panels have numbers of their own and do not overlap, and each has a
// title and, unless it is a row, a description, queries and one of the data sources.
func TestDashboardIsWellFormed(t *testing.T) {
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 36 {
		t.Errorf("uid %q, title %q, schemaVersion %d", d.UID, d.Title, d.SchemaVersion)
	}
	variables := map[string]string{}
	for _, v := range d.Templating.List {
		variables[v.Name] = v.Type
	}
	if want := map[string]string{"prometheus": "datasource", "postgres": "datasource", "instance": "query", "prefix": "query", "granularity": "custom"}; !maps.Equal(variables, want) {
		t.Errorf("variables %v, want %v", variables, want)
	}
	ids, taken := map[int]bool{}, map[string]string{}
	for _, p := range d.Panels {
		if p.Title == "" || ids[p.ID] {
			t.Errorf("panel %d %q has no title, or the number of another", p.ID, p.Title)
		}
		ids[p.ID] = true
		g := p.GridPos
		if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("%s is outside of the grid: %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				cell := fmt.Sprint(x, ",", y)
				if other := taken[cell]; other != "" {
					t.Fatalf("%s covers %s", p.Title, other)
				}
				taken[cell] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 || p.Datasource != prometheusSource && p.Datasource != postgresSource {
			t.Errorf("%s has no description, no query or another data source: %+v", p.Title, p.Datasource)
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if q.RefID == "" || refs[q.RefID] || q.Datasource != p.Datasource || (q.Expr == "") == (q.RawSQL == "") {
				t.Errorf("%s has a query without a name, a text or the panel's data source: %+v", p.Title, q)
			}
			refs[q.RefID] = true
		}
	}
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
			rules += fmt.Sprintf("  - record: panel_%d_%s\n    expr: '%s'\n", p.ID, q.RefID, strings.ReplaceAll(expr, "'", "''"))
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

// TestDashboardShowsAPolicyAlone: each panel of the first row shows a Caddy that has a policy and no
// other limit.
func TestDashboardShowsAPolicyAlone(t *testing.T) {
	dsn := withPolicy(t, people+"SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 1);")
	c := startPolicy(t, dsn)
	c.expect(http.StatusOK, "/", "X-User", "alice")
	c.expect(http.StatusTooManyRequests, "/", "X-User", "alice")
	_, metrics := metricsOfCaddy(t)
	tests := "rule_files: []\ntests:\n- interval: 1m\n  input_series:\n"
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "caddy_") {
			series, _, _ := strings.Cut(line, " ")
			tests += fmt.Sprintf("  - series: '%s'\n    values: '1+1x20'\n", series)
		}
	}
	tests += "  promql_expr_test:\n"
	for _, p := range readDashboard(t).Panels[1:] {
		if p.Type == "row" {
			break
		}
		for _, q := range p.Targets {
			tests += fmt.Sprintf("  - expr: 'count(%s) > bool 0'\n    eval_time: 10m\n    exp_samples: [{value: 1}]\n", promQL.Replace(q.Expr))
		}
	}
	path := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(path, []byte(tests), 0o600); err != nil {
		t.Fatal(err)
	}
	check(t, "", "test", "rules", path)
}

// TestDashboardAsksTheDatabase: Postgres understands the queries of the dashboard, and those for a
// graph have a time first.
func TestDashboardAsksTheDatabase(t *testing.T) {
	dsn := cluster.Open(t)
	cluster.Execute(t, dsn, schema.History)
	values := strings.NewReplacer("$__timeFilter(time)", "time BETWEEN now() - interval '1 hour' AND now()", "${granularity}", "minute")
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
