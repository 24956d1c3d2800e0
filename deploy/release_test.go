package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
)

// Each file that names the version of this project names host.Version.
func TestVersionIsTheSameEverywhere(t *testing.T) {
	for path, pattern := range map[string]string{
		"CHANGELOG.md":                 `(?m)\A# Changelog\n(?:[^#].*\n|\n)*## (\S+)$`,
		"xcaddy/go.mod":                `pgratelimit/pg-ratelimit v(\S+)`,
		"docs/traefik.md":              `version: v(\S+)`,
		"README.md":                    `[Ff]rom (\d+\.\d+\.\d+)`,
		"docs/caddy.md":                `[Ff]rom (\d+\.\d+\.\d+)`,
		"deploy/Dockerfile":            `pg-ratelimit-[a-z-]+:(\S+)`,
		"deploy/caddy/compose.yaml":    `pg-ratelimit-[a-z-]+:(\S+)`,
		"deploy/kubernetes/caddy.yaml": `pg-ratelimit-[a-z-]+:(\S+)`,
	} {
		text := readFile(t, filepath.Join(root, path))
		found := submatches(pattern, text)
		if len(found) == 0 {
			t.Errorf("%s names no version, want %s", path, host.Version)
		}
		for _, version := range found {
			if "v"+strings.TrimRight(version, ",") != host.Version {
				t.Errorf("%s names the version %s, want %s", path, version, host.Version)
			}
		}
	}
}

// The guide names the oldest and the newest Caddy that are tested.
func TestGuideNamesTestedCaddys(t *testing.T) {
	guide := readFile(t, filepath.Join(root, "docs/caddy.md"))
	for _, path := range []string{"go.mod", "xcaddy/go.mod"} {
		version := submatches(`caddyserver/caddy/v2 v(\S+)`, readFile(t, filepath.Join(root, path)))[0]
		if !regexp.MustCompile(`\b` + regexp.QuoteMeta(version) + `\b`).MatchString(guide) {
			t.Errorf("docs/caddy.md lacks %s, want the Caddy of %s", version, path)
		}
	}
}

// The linter actionlint accepts the workflows. They name each action by a commit, and run the tests and the
// build of a release.
func TestWorkflowsAreSoundAndPinned(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.yml"))
	if err != nil || len(paths) != 2 {
		t.Fatalf("the workflows are %q, %v, want two", paths, err)
	}
	workflows := ""
	for _, path := range paths {
		text := readFile(t, path)
		workflows += text
		for _, action := range submatches(`uses: (\S+)`, text) {
			if !regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40}$`).MatchString(action) {
				t.Errorf("%s uses %s, want a commit after the @", path, action)
			}
		}
	}
	// actionlint needs another version of the YAML library than compose-go, so it is a program here.
	lint := exec.Command("go",
		append([]string{"run", "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12", "-shellcheck=",
			"-pyflakes="}, paths...)...)
	lint.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0")
	if out, err := lint.CombinedOutput(); err != nil {
		t.Errorf("actionlint: %v\n%s", err, out)
	}
	for _, command := range []string{"run: .ci/run\n", "run: make release\n"} {
		if !strings.Contains(workflows, command) {
			t.Errorf("no workflow has %q", command)
		}
	}
}

// submatches returns the first group of each match.
func submatches(pattern, text string) []string {
	var groups []string
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		groups = append(groups, match[1])
	}
	return groups
}
