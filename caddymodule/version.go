package caddymodule

import (
	"runtime/debug"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
)

// Version returns the versions of Caddy and of pg-ratelimit, for the registry of proxies and the log.
func Version() string {
	simple, _ := caddy.Version()
	info, _ := debug.ReadBuildInfo()
	return "Caddy " + simple + ", pg-ratelimit " + moduleVersion(info)
}

// moduleVersion returns the version of pg-ratelimit in a build, in the form that `caddy list-modules
// --versions` prints. It names the commit of a build between two releases. A build from a clone has
// host.Version.
func moduleVersion(info *debug.BuildInfo) string {
	if info != nil {
		for _, module := range info.Deps {
			if module.Path == "github.com/pgratelimit/pg-ratelimit" && module.Replace == nil {
				return module.Version
			}
		}
	}
	return host.Version
}
