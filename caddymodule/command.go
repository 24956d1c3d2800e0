package caddymodule

import (
	"errors"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
)

// Commands adds all subcommands to the command `caddy pg-ratelimit`. Package admin sets it when the process
// starts; it is nil in a Caddy without that package.
var Commands func(*cobra.Command)

// errNoCommands is the error of `caddy pg-ratelimit …` in a Caddy without package admin.
var errNoCommands = errors.New("this Caddy has the limiter alone. To make the tables: psql -f schema.sql. " +
	"For the commands and the page: xcaddy build --with github.com/pgratelimit/pg-ratelimit/caddymodule " +
	"--with github.com/pgratelimit/pg-ratelimit/admin, or the program without a Caddy: " +
	"go install github.com/pgratelimit/pg-ratelimit/admin/cmd/pg-ratelimit@latest")

func init() {
	pg.Program = "caddy pg-ratelimit"
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "pg-ratelimit",
		Usage: "<command>",
		Short: "Manages the rate limits, users and API keys in Postgres",
		CobraFunc: func(cmd *cobra.Command) {
			if Commands != nil {
				Commands(cmd)
				return
			}
			cmd.DisableFlagParsing = true
			cmd.RunE = func(*cobra.Command, []string) error { return errNoCommands }
		},
	})
}
