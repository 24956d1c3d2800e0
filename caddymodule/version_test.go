package caddymodule

import (
	"runtime/debug"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
)

// The version is that of the module in the build, or else the version in the source: for a build from a
// clone, a test, and a build without information.
func TestModuleVersionIsThatOfBuild(t *testing.T) {
	const path, commit = "github.com/pgratelimit/pg-ratelimit", "v0.1.1-0.20261121160000-0123456789ab"
	for name, test := range map[string]struct {
		info *debug.BuildInfo
		want string
	}{
		"a build of xcaddy": {&debug.BuildInfo{Deps: []*debug.Module{{Path: path + "-other",
			Version: "v9.0.0"}, {Path: path, Version: commit}}}, commit},
		"a build from a clone": {&debug.BuildInfo{Deps: []*debug.Module{{Path: path, Version: "v0.0.0",
			Replace: &debug.Module{Path: "../"}}}}, host.Version},
		"a test":           {&debug.BuildInfo{Main: debug.Module{Path: path}}, host.Version},
		"an unknown build": {nil, host.Version},
	} {
		if got := moduleVersion(test.info); got != test.want {
			t.Errorf("%s: moduleVersion = %s, want %s", name, got, test.want)
		}
	}
}
