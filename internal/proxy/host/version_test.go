package host_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
)

// Version is the newest release, or a later one with -dev if there are changes since then. The Caddy of `make
// build` lists the same version.
func TestVersionMatchesChangelog(t *testing.T) {
	changelog, err := os.ReadFile("../../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^v\d+\.\d+\.\d+(-dev)?$`).MatchString(host.Version) {
		t.Errorf("Version is %s, want the form v1.2.3 or v1.2.3-dev", host.Version)
	}
	heading := regexp.MustCompile(`(?m)^## (?:\[?v?(\d+\.\d+\.\d+)|Unreleased)`)
	headings := heading.FindAllStringSubmatch(string(changelog), -1)
	release, dev := strings.CutSuffix(strings.TrimPrefix(host.Version, "v"), "-dev")
	newest := ""
	for _, heading := range headings {
		if newest == "" {
			newest = heading[1]
		}
	}
	if unreleased := headings[0][1] == ""; unreleased != dev || (release == newest) == dev {
		t.Errorf("Version is %s, want it to match %q, the first heading of CHANGELOG.md, after release %q",
			host.Version, headings[0][0], newest)
	}
	module, err := os.ReadFile("../../../xcaddy/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(module), "\tgithub.com/pgratelimit/pg-ratelimit "+host.Version+"\n") {
		t.Errorf("xcaddy/go.mod does not require %s", host.Version)
	}
}
