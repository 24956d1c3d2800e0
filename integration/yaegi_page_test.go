package integration

import (
	"fmt"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/traefikplugin"
)

// reported is what a proxy reports while a page is open, without what differs between two runs.
const reported = `SELECT concat_ws(' ', live->'handlers', live->'counts', live->'top'->'all', live->'top'->'keys', live->'top'->'addresses', live->>'history', live->>'kind', json_array_length(live->'stores'))
	FROM rate_limit_nodes WHERE live->'counts'->'web' IS NOT NULL`

// TestInterpretedReportsWhatCompiledReports sends the same requests to the compiled and to the interpreted plugin while a
// page is open.
func TestInterpretedReportsWhatCompiledReports(t *testing.T) {
	p := loadPlugin(t)
	dsnGo, dsnYaegi := cluster.Open(t), cluster.Open(t)
	byGo, err := traefikplugin.New(t.Context(), telling, &traefikplugin.Config{DSN: dsnGo, Timeout: "30s", Zone: traefikplugin.Zone{Audit: "denied", Prefix: "web", Key: "{header.X-Key}", Limit: "2 1h"}}, "test")
	if err != nil {
		t.Fatal(err)
	}
	byYaegi := p.mustHandler(t, telling, object{"dsn": dsnYaegi, "timeout": "30s", "audit": "denied", "prefix": "web", "key": "{header.X-Key}", "limit": "2 1h"})
	for _, dsn := range []string{dsnGo, dsnYaegi} {
		await(t, "the row of the proxy", func() bool {
			return queryInt(t, dsn, "SELECT count(*) FROM pg_class WHERE relname = 'rate_limit_nodes'") == 1 && queryInt(t, dsn, "SELECT count(*) FROM rate_limit_nodes") == 1
		})
		execute(t, dsn, "UPDATE rate_limit_nodes SET watched = now() + interval '1 h'")
		await(t, "the first report", func() bool { return queryInt(t, dsn, "SELECT count(live) FROM rate_limit_nodes") == 1 })
	}
	for i := range 4 {
		for range 4 {
			if a, b := askPath(byGo, "/", "X-Key", fmt.Sprint("k", i/3)), askPath(byYaegi, "/", "X-Key", fmt.Sprint("k", i/3)); a.Code != b.Code {
				t.Errorf("%d compiled, %d interpreted", a.Code, b.Code)
			}
		}
	}
	await(t, "all requests in the reports", func() bool {
		const counted = "SELECT count(*) FROM rate_limit_nodes WHERE live->'top'->'all'->0->>2 = '16' AND live->'counts'->'web'->>0 = '4'"
		return queryInt(t, dsnGo, counted) == 1 && queryInt(t, dsnYaegi, counted) == 1
	})
	if a, b := sortedLines(t, dsnGo, reported), sortedLines(t, dsnYaegi, reported); len(a) != len(b) || a == "" {
		t.Errorf("compiled:\n%s\ninterpreted:\n%s", a, b)
	}
	// After the last page nothing is reported.
	for _, dsn := range []string{dsnGo, dsnYaegi} {
		execute(t, dsn, "UPDATE rate_limit_nodes SET watched = now()")
		await(t, "an end of the reports", func() bool { return queryInt(t, dsn, "SELECT count(live) FROM rate_limit_nodes") == 0 })
	}
}
