// Command xcaddy is stock Caddy plus pg_ratelimit: the program that
//
//	xcaddy build --with github.com/pgratelimit/pg-ratelimit/caddymodule
//
// would generate, kept here so that a plain `go build` makes it.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	// The modules of a stock Caddy.
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	// The pg_ratelimit handler.
	_ "github.com/pgratelimit/pg-ratelimit/caddymodule"
)

func main() { caddycmd.Main() }
