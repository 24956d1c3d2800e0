package command

import (
	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func forgetCommand(t *tool) *cobra.Command {
	var who admin.Person
	var ip, key string
	account, dryRun := false, false
	cmd := &cobra.Command{
		Use:   "forget [--user USER | --ip ADDRESS | --key KEY | --key-id ID] [--account] [--dry-run]",
		Short: "Deletes all that is stored about a person",
		Long: `Deletes the rows about a user, an address or an API key, in one transaction: counters, rows of
the audit log, usage, overrides and bans. It prints how many rows of each table. --dry-run only
counts them. --user includes the API keys of the user.

The users and API keys themselves go with --account only. Without it, their next request makes
new rows. --key can also be the key of any counter, such as a session; "-" reads it from standard
input. --ip is one client: of IPv6, all addresses of the same /64.

Not deleted are: files of archive; lines of the log of changes, which go after 30 days; rows of
the audit log that have a wider network in place of the address; and counters whose key is a
digest of several things. These counters expire by themselves.

The tables of the history can be changed by their owner only.`,
		Example: `  caddy pg-ratelimit forget --user acme --dry-run
  caddy pg-ratelimit forget --user acme --account
  caddy pg-ratelimit forget --ip 192.0.2.1
  caddy pg-ratelimit forget --key - < key.txt`,
		RunE: t.at(ofAll, func(c *call) error {
			var err error
			if who.Key, err = c.secret("--key", key); err != nil {
				return err
			}
			if ip != "" {
				if who.Address, err = admin.ParseAddress("--ip", ip); err != nil {
					return err
				}
			}
			if c.cmd.Flags().Changed("key-id") && who.KeyID < 1 {
				return &ratelimit.FieldError{Field: "--key-id", Value: cell(who.KeyID), Want: "the number of a key, as in keys list"}
			}
			forgotten, err := c.db.Forget(c.ctx, &who, account, dryRun)
			return show(c, forgotten, err, addForgotten)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&who.User, "user", "", "a user, with all its API keys")
	flags.StringVar(&ip, "ip", "", "the address of a client")
	flags.StringVar(&key, "key", "", `an API key, or the key of a counter; "-" reads it from standard input`)
	flags.Int64Var(&who.KeyID, "key-id", 0, "an API key by its number")
	flags.BoolVar(&account, "account", false, "delete the user and the API keys as well")
	flags.BoolVar(&dryRun, "dry-run", false, "count the rows, and delete none")
	cmd.MarkFlagsMutuallyExclusive("user", "ip", "key", "key-id")
	t.mayComplete(cmd, "user", t.completeOne(userNames))
	t.mayComplete(cmd, "key-id", t.completeOne(validKeys))
	return cmd
}

func addForgotten(p *page, f *admin.Forgetting) {
	header := "DELETED"
	if f.DryRun {
		header = "WOULD BE DELETED"
	}
	addList(p, f.Tables, func(t *admin.Forgotten) row { return row{"TABLE", t.Table, header, t.Rows} }, "There are no tables.")
	for _, note := range f.Notes {
		p.print("\n%s\n", note)
	}
}
