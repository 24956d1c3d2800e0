package caddymodule

import (
	"runtime/debug"

	"github.com/caddyserver/caddy/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
)

// version names this program, as the registry of proxies and the log have it.
func version() string {
	simple, _ := caddy.Version()
	info, _ := debug.ReadBuildInfo()
	return "Caddy " + simple + ", pg-ratelimit " + moduleVersion(info)
}

// moduleVersion is the version of pg-ratelimit in a build: the one that `caddy list-modules --versions`
// prints, which names the commit of a build between two releases. A build from a clone does not have it.
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
