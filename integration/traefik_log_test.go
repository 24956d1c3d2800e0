package integration

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestAPluginThatDoesNotLoad runs a Traefik without the files of the plugin. Without abortOnPluginFailure, a
// router for all paths serves the path of the middleware, without a limit. With it, Traefik ends.
func TestAPluginThatDoesNotLoad(t *testing.T) {
	dir, web := t.TempDir(), harness.FreeAddress(t)
	service := object{"loadBalancer": object{"servers": []object{{"url": startBackend(t)}}}}
	dynamic := filepath.Join(dir, "dynamic.yml")
	writeYAML(t, dynamic, object{"http": object{
		"middlewares": object{"limit": object{"plugin": object{"pg-ratelimit": object{"dsn": "memory",
			"limit": "1 1h"}}}},
		"routers": object{
			"limited": object{"rule": "Path(`/limited`)", "service": "app", "middlewares": []string{"limit"}},
			"all":     object{"rule": "PathPrefix(`/`)", "service": "app"},
		},
		"services": object{"app": service},
	}})
	program := harness.Program{Name: "traefik", Path: traefikProgram(t), Dir: dir, Args: []string{
		"--entryPoints.web.address=" + web, "--providers.file.filename=" + dynamic,
		"--experimental.localPlugins.pg-ratelimit.moduleName=" + modulePath}}
	tr := harness.Start(t, program)
	tr.AwaitAddress(t, web)
	for range 3 {
		tr.Await(t, "the router for all paths",
			func() bool {
				return harness.Ask(t, harness.Get("http://"+web+"/limited")).
					Status == http.StatusOK
			})
	}
	for _, line := range []string{"Plugins are disabled because an error has occurred",
		"invalid middleware"} {
		if !strings.Contains(tr.Log(), line) {
			t.Errorf("its log has no %q", line)
		}
	}
	if err := tr.Stop(); err != nil {
		t.Fatal(err)
	}

	program.Args = append(program.Args, "--experimental.abortOnPluginFailure=true")
	p, err := harness.Launch(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WaitFor("a request", func() bool { return false }); err == nil || !strings.Contains(p.Log(),
		"failed to create plugin builder") {
		t.Errorf("with abortOnPluginFailure: %v", err)
	}
	if err := p.Kill(); err != nil && !strings.Contains(err.Error(), os.ErrProcessDone.Error()) {
		t.Error(err)
	}
}

// TestTraefikShowsWhatAnOperatorMustSee compares the levels of the plugin's lines in Traefik's log, which has
// the lines of a plugin's standard output at DEBUG only. Traefik's API shows the settings.
func TestTraefikShowsWhatAnOperatorMustSee(t *testing.T) {
	tr := startTraefikWith(t, object{}, "DEBUG",
		[]route{{"/", "", object{"dsn": "memory", "prefix": "of-this-test", "limit": "3 1h"}}})
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
