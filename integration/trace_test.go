package integration

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// Caddy's span of a request has the decision as an event, and no secret key.
func TestDecisionsAreOnSpansOfCaddy(t *testing.T) {
	t.Parallel()
	address := harness.FreeAddress(t)
	limit := object{"prefix": "traced", "key": "{header.Authorization}", "limit": "1 1h",
		"algorithm": "fixed_window"}
	config := harness.Replace(t, caddyfile(address, "memory", []route{{path: "/", limit: limit}}), "route {",
		"route {\n\ttracing")
	c := startCaddyOn(t, address, config, "OTEL_TRACES_EXPORTER=console",
		"OTEL_BSP_SCHEDULE_DELAY=50")
	if got := statusesOf(t, 2, c.url, "Authorization", "hunter2"); got != "200 429" {
		t.Fatalf("the statuses are %s, want 200 429", got)
	}
	const limited = `{"Key":"pg_ratelimit.outcome","Value":{"Type":"STRING","Value":"limited"}}`
	await(t, "the spans", func() bool { return strings.Contains(c.Log(), limited) })
	log := c.Log()
	wantContains(t, log, `"Name":"pg_ratelimit.decision"`, `"Value":"admitted"`, `"Value":"traced"`,
		`"Value":"sha256:`, `"pg_ratelimit.retry_after"`, `{"Type":"INT64","Value":429}`)
	if strings.Contains(log, "hunter2") {
		t.Error("a span has the secret key, want its digest")
	}
}
