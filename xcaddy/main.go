// Command xcaddy is stock Caddy plus pg_ratelimit: the program that
//
//	xcaddy build --with github.com/pgratelimit/pg-ratelimit/admin
//
// would generate. It is kept here so that `go build` builds it without xcaddy.
package main

import (
	// The time zones, for machines without them.
	_ "time/tzdata"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	// The modules of a stock Caddy.
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	// The pg_ratelimit handler, the page and the commands.
	_ "github.com/pgratelimit/pg-ratelimit/admin"
)

func main() { caddycmd.Main() }
