package imports

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// modulesOfCore lists the modules that the limiter imports itself, for what. A Caddy with it alone has no
// other modules than these and their own, so no scanner finds what only commands need.
var modulesOfCore = map[string]string{
	"github.com/caddyserver/caddy/v2":     "it is a module of Caddy",
	"github.com/jackc/pgx/v5":             "the driver of Caddy and of Go programs",
	"github.com/prometheus/client_golang": "metrics in Caddy's registry, which requires it itself",
	"github.com/spf13/cobra":              "the hook for the commands, which Caddy requires itself",
	"go.opentelemetry.io/otel":            "decisions on Caddy's spans, which requires it itself",
	"go.opentelemetry.io/otel/trace":      "decisions on Caddy's spans, which requires it itself",
	"go.uber.org/zap":                     "Caddy's log, which requires it itself",
}

// What decides requests imports nothing of what operators use, and only the modules of the list.
func TestTheLimiterNeedsNothingOfAdmin(t *testing.T) {
	packages := listed(t, packages)
	used := map[string]string{}
	for path, p := range packages {
		dir, ours := strings.CutPrefix(path, module+"/")
		if !ours || isAdmin(dir) || isForTests.MatchString(dir) {
			continue
		}
		for _, dep := range p.Deps {
			if dir, _ := strings.CutPrefix(dep, module+"/"); isAdmin(dir) {
				t.Errorf("%s needs %s, want no package of admin", path, dep)
			}
		}
		for _, dep := range p.Imports {
			if m := packages[dep].Module; m != nil && m.Path != module {
				used[m.Path] = dir
			}
		}
	}
	want := slices.Sorted(maps.Keys(modulesOfCore))
	if got := slices.Sorted(maps.Keys(used)); !slices.Equal(got, want) {
		t.Errorf("the limiter imports the modules %q, by the packages %v, want %q", got, used, want)
	}
}

// The program pg-ratelimit has no Caddy in it, so a user of Traefik needs none.
func TestTheProgramNeedsNoCaddy(t *testing.T) {
	program, ok := listed(t, packages)[module+"/admin/cmd/pg-ratelimit"]
	if !ok || len(program.Deps) < 100 {
		t.Fatalf("the program has %d dependencies, want those of the commands", len(program.Deps))
	}
	for _, dep := range program.Deps {
		if strings.Contains(dep, "caddy") {
			t.Errorf("pg-ratelimit needs %s, want nothing of Caddy", dep)
		}
	}
}

func isAdmin(dir string) bool { return dir == "admin" || strings.HasPrefix(dir, "admin/") }

// isForTests matches packages for tests and builds, which no proxy contains.
var isForTests = regexp.MustCompile(`^internal/(testkit/|demo$|release$)`)

// The file go.mod replaces no module, because a replacement has no effect for users of this module.
func TestNoModuleIsReplaced(t *testing.T) {
	if strings.Contains(readFile(t, "go.mod"), "\nreplace ") {
		t.Error("go.mod replaces a module, want no replacements")
	}
}
