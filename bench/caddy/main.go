// Command caddy is the Caddy of `make build` with other limiters instead of
// pg_ratelimit: rate_limit, which counts in this process, and redis_rate, which
// counts in Redis. The benchmark compares pg_ratelimit with them. This module is
// separate, so that no program that users get contains what the limiters require.
package main

import (
	_ "time/tzdata"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	// The modules of a stock Caddy.
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	// The handler rate_limit.
	_ "github.com/mholt/caddy-ratelimit"
)

func main() { caddycmd.Main() }
