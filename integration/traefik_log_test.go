package integration

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestTraefikShowsWhatAnOperatorMustSee compares the levels of the plugin's lines in Traefik's log, which has
// the lines of a plugin's standard output at DEBUG only. Traefik's API shows the settings. A route with a
// wrong setting is gone.
func TestTraefikShowsWhatAnOperatorMustSee(t *testing.T) {
	tr := startTraefikWith(t, object{}, "DEBUG",
		[]route{{"/right", "", object{"dsn": "memory", "prefix": "of-this-test", "limit": "3 1h"}},
			{"/wrong", "", object{"dsn": "memory", "prefix": "wrong", "limit": "no limit"}}})
	for path, want := range map[string]int{"/right": http.StatusOK, "/wrong": http.StatusNotFound} {
		if answer := harness.Ask(t, harness.Get(tr.url+path)); answer.Status != want {
			t.Errorf("%s is answered %d, want %d", path, answer.Status, want)
		}
	}
	for text, level := range map[string]string{"pg_ratelimit: dsn is memory": " ERR ",
		"pg_ratelimit: rate limits are enforced by": " DBG ", "pg_ratelimit: middleware r0@file": " DBG "} {
		found := false
		for line := range strings.Lines(tr.Log()) {
			if strings.Contains(line, text) {
				found = true
				if !strings.Contains(line, level) {
					t.Errorf("want%sin %s", level, line)
				}
			}
		}
		if !found {
			t.Errorf("the log has no line with %q", text)
		}
	}
	if answer := harness.Ask(t, harness.Get(tr.admin+"/api/http/middlewares/r0@file")); !strings.Contains(
		answer.Body, `"dsn":"memory"`) {
		t.Errorf("the API answers %d %s", answer.Status, answer.Body)
	}
}
