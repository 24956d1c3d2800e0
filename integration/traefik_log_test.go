package integration

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// Traefik logs the plugin's errors at the level ERR, and other lines at DBG, its level for a plugin's
// standard output. Its API shows the settings. It drops a route with a wrong setting, and keeps two routes
// with different windows on the same rows.
func TestTraefikShowsWhatAnOperatorMustSee(t *testing.T) {
	tr := startTraefikWith(t, "..", object{}, "DEBUG",
		[]route{{path: "/right", limit: object{"dsn": "memory", "prefix": "of-this-test", "limit": "3 1h"}},
			{path: "/wrong", limit: object{"dsn": "memory", "prefix": "wrong", "limit": "no limit"}},
			{path: "/seconds", limit: object{"dsn": "memory", "prefix": "one", "limit": "5 5s"}},
			{path: "/hour", limit: object{"dsn": "memory", "prefix": "one", "limit": "50 1h"}}})
	for path, want := range map[string]int{"/right": http.StatusOK, "/wrong": http.StatusNotFound,
		"/seconds": http.StatusOK, "/hour": http.StatusOK} {
		if response := harness.Ask(t, harness.Get(tr.url+path)); response.Status != want {
			t.Errorf("%s: status %d, want %d", path, response.Status, want)
		}
	}
	for text, level := range map[string]string{"pg_ratelimit: dsn is memory": " ERR ",
		`prefix: "one": must be another name`:       " ERR ",
		"pg_ratelimit: rate limits are enforced by": " DBG ", "pg_ratelimit: middleware r0@file": " DBG "} {
		found := false
		for line := range strings.Lines(tr.Log()) {
			if strings.Contains(line, text) {
				found = true
				if !strings.Contains(line, level) {
					t.Errorf("the log has %q, want it at level%s", line, level)
				}
			}
		}
		if !found {
			t.Errorf("the log has no line with %q", text)
		}
	}
	response := harness.Ask(t, harness.Get(tr.admin+"/api/http/middlewares/r0@file"))
	if !strings.Contains(response.Body, `"dsn":"memory"`) {
		t.Errorf("Traefik's API: %d %s, want the dsn", response.Status, response.Body)
	}
}
