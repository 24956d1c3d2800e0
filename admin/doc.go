// Package admin adds what operators use to a Caddy with package caddymodule: the commands `caddy pg-ratelimit
// …`, and the handler pg_ratelimit_page. It is a part of a Caddy that is built with it:
//
//	xcaddy build --with github.com/pgratelimit/pg-ratelimit/admin
//
// A Page shows what all proxies on a database do. An App opens the pages of a config, with the databases that
// caddymodule.App has, and refuses a Page without a guard in front of it.
//
// The packages below need no Caddy: command implements the commands, page serves the page, explain and
// archive do what commands of their names do, migrate makes the tables, and cmd/pg-ratelimit is a program of
// these alone. No package of the limiter imports any of them.
package admin

import (
	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/admin/command"
	"github.com/pgratelimit/pg-ratelimit/caddymodule"
)

func init() {
	caddymodule.Commands = func(cmd *cobra.Command) {
		command.Build(cmd, func(configured string) (string, error) {
			dsn, _, err := caddymodule.ExpandDSN(configured)
			return dsn, err
		})
	}
}
