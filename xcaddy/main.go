// Command xcaddy is stock Caddy plus pg_ratelimit: the program that
//
//	xcaddy build --with github.com/pgratelimit/pg-ratelimit/caddymodule
//
// would generate. It is kept here so that `go build` builds it without xcaddy.
package main

import (
	// The time zones, for machines without them.
	_ "time/tzdata"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	// The modules of a stock Caddy.
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	// The pg_ratelimit handler.
	_ "github.com/pgratelimit/pg-ratelimit/caddymodule"
)

func main() { caddycmd.Main() }
