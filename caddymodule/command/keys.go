package command

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

func keysCommand(t *tool) *cobra.Command {
	return group(&cobra.Command{
		Use:   "keys",
		Short: "Makes, lists, changes, revokes and rotates API keys",
		Example: `  caddy pg-ratelimit keys create --user acme
  caddy pg-ratelimit keys list --user acme`,
	}, keysCreate(t), keysList(t), keysSet(t), keysRevoke(t), keysRotate(t))
}

func keysCreate(t *tool) *cobra.Command {
	var user, name, tier, expires string
	cmd := &cobra.Command{
		Use:   "create --user USER [--name NAME] [--tier TIER] [--expires WHEN]",
		Short: "Makes an API key and prints it, only once",
		Long: `Makes an API key and prints it on standard output. All other output goes to standard
error. The database has only a digest of the key, so nothing can print it again. With a tier of
its own, requests with the key have that tier, and not that of the user.`,
		Example: `  caddy pg-ratelimit keys create --user acme --name production
  caddy pg-ratelimit keys create --user acme --name batch --tier bulk
  caddy pg-ratelimit keys create --user acme --expires 90d | vault kv put secret/acme key=-`,
		RunE: t.on(func(c *call) error {
			ends, err := c.end("--expires", expires)
			if err != nil {
				return err
			}
			return c.newKey(c.db.CreateKey(c.ctx, user, name, tier, ends))
		}),
	}
	cmd.Flags().StringVar(&user, "user", "", "the user that gets the key")
	cmd.Flags().StringVar(&name, "name", "", "what the key is for")
	cmd.Flags().StringVar(&tier, "tier", "", "the tier of the key (default: that of the user)")
	cmd.Flags().StringVar(&expires, "expires", "", "when the key ends: 90d, 2026-12-31 or never (default never)")
	must(cmd.MarkFlagRequired("user"))
	t.mayComplete(cmd, "user", t.completeOne(userNames))
	t.mayComplete(cmd, "tier", t.completeOne(tierNames))
	return cmd
}

func keysSet(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "set ID SETTING=VALUE ...",
		Short: "Changes settings of an API key, and its limits",
		Long: `Changes the settings that are named and keeps the others. An empty value takes a setting back
to its default, and deletes an override. The change is one transaction.

Settings:
` + settingsHelp(admin.KeySettings()),
		Example: `  # a key with a tier of its own, and with that of its user again
  caddy pg-ratelimit keys set 7 tier=bulk
  caddy pg-ratelimit keys set 7 tier=

  # one key with more, and without it again
  caddy pg-ratelimit keys set 7 free/per_hour=5000
  caddy pg-ratelimit keys set 7 free/per_hour=`,
		ValidArgsFunction: t.completeSettings(validKeys, admin.KeySettings(), "tier"),
		RunE: t.onKey(func(c *call, id int64) error {
			return c.changed(c.db.SetKey(c.ctx, id, c.args[1:]), "key", c.args[0], createdOrChanged(false))
		}),
	}
}

// newKey prints a new key, unless err says that there is none. No other command prints a key.
func (c *call) newKey(key *admin.NewKey, err error) error {
	return show(c, key, err, func(p *page, key *admin.NewKey) {
		said := c.cmd.ErrOrStderr()
		fmt.Fprintf(said, "This is the key %d of the user %s. Nothing can show it again. It ends: %s.\n", key.ID, text(key.User), or(key.ExpiresAt, "never"))
		if key.Replaces != nil {
			fmt.Fprintf(said, "The key %d, which it replaces, ends: %s.\n", *key.Replaces, cell(key.ReplacedAt))
		}
		p.print("%s\n", key.Key)
	})
}

func keyRow(k *admin.Key) row {
	return append(row{
		"ID", k.ID, "KEY", k.Hint, "USER", k.User, "TIER", k.Tier, "NAME", k.Name, "STATE", k.State, "EXPIRES", or(k.ExpiresAt, "never"),
		"REVOKED", k.RevokedAt, "REPLACED BY", k.ReplacedBy, "CREATED", k.CreatedAt,
	}, recentRow(k.Recent)...)
}

func keysList(t *tool) *cobra.Command {
	user, most := "", number(100)
	cmd := &cobra.Command{
		Use:   "list [--user USER] [-n 100]",
		Short: "Lists the API keys, by their first characters, and what they did",
		Long:  `Lists the API keys, by their first characters. ` + recentHelp,
		Example: `  caddy pg-ratelimit keys list
  caddy pg-ratelimit keys list --user acme --json`,
		RunE: t.on(func(c *call) error {
			if err := most.check(); err != nil {
				return err
			}
			keys, err := c.db.KeysWithUsage(c.ctx, user, int(most))
			return show(c, keys, err, func(p *page, keys []admin.Key) {
				addList(p, keys, keyRow, "There are no keys.")
				if len(keys) == int(most) {
					p.print("There may be more than these %d: -n says how many.\n", most)
				}
			})
		}),
	}
	cmd.Flags().StringVar(&user, "user", "", "keys of this user only")
	most.flag(cmd)
	t.mayComplete(cmd, "user", t.completeOne(userNames))
	return cmd
}

// onKey makes an action on one API key the work of a command with the argument ID.
func (t *tool) onKey(do func(c *call, id int64) error) func(*cobra.Command, []string) error {
	return t.on(func(c *call) error {
		id, err := strconv.ParseInt(c.args[0], 10, 64)
		if err != nil || id < 1 {
			return errors.New("ID: must be the number of a key, as in: caddy pg-ratelimit keys list")
		}
		return do(c, id)
	})
}

func keysRevoke(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:               "revoke ID",
		Short:             "Ends an API key now",
		Example:           "  caddy pg-ratelimit keys revoke 7",
		ValidArgsFunction: t.completeOne(validKeys),
		RunE: t.onKey(func(c *call, id int64) error {
			key, err := c.db.RevokeKey(c.ctx, id)
			return show(c, key, err, func(p *page, key *admin.Key) {
				p.print("The key %d of the user %s is revoked since %s.\n", key.ID, text(key.User), cell(key.RevokedAt))
			})
		}),
	}
}

func keysRotate(t *tool) *cobra.Command {
	grace := ""
	cmd := &cobra.Command{
		Use:   "rotate ID [--grace 24h]",
		Short: "Makes an API key in place of another one, and ends that one after a grace",
		Long: `Makes an API key with the name, the tier, the end, the overrides and the bans of another one, and
prints it like keys create. The old key is valid until the grace has passed: if it has
leaked, give --grace 0s. Limits that count by key count the new key from zero; those that
count by user go on.`,
		Example: `  caddy pg-ratelimit keys rotate 7 --grace 24h

  # the key has leaked
  caddy pg-ratelimit keys rotate 7 --grace 0s`,
		ValidArgsFunction: t.completeOne(validKeys),
		RunE: t.onKey(func(c *call, id int64) error {
			d, err := duration("--grace", grace)
			if err != nil {
				return err
			}
			return c.newKey(c.db.RotateKey(c.ctx, id, d))
		}),
	}
	cmd.Flags().StringVar(&grace, "grace", "24h", "how long the old key stays valid")
	return cmd
}
