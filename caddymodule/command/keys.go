package command

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

func keysCommand(t *tool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Makes, lists, revokes and rotates API keys",
		Example: `  caddy pg-ratelimit keys create --user acme
  caddy pg-ratelimit keys list --user acme`,
	}
	group(cmd)
	cmd.AddCommand(keysCreate(t), keysList(t), keysRevoke(t), keysRotate(t))
	return cmd
}

func keysCreate(t *tool) *cobra.Command {
	var user, name, expires string
	cmd := &cobra.Command{
		Use:   "create --user USER [--name NAME] [--expires WHEN]",
		Short: "Makes an API key and prints it, only once",
		Long: `Makes an API key and prints it on standard output. All other output goes to standard
error. The database has only a digest of the key, so nothing can print it again.`,
		Example: `  caddy pg-ratelimit keys create --user acme --name production
  caddy pg-ratelimit keys create --user acme --expires 90d | vault kv put secret/acme key=-`,
		Args: arguments(),
		RunE: t.on(func(c *call) error {
			ends, err := c.end("--expires", expires)
			if err != nil {
				return err
			}
			return c.newKey(c.db.CreateKey(c.ctx, user, name, ends))
		}),
	}
	cmd.Flags().StringVar(&user, "user", "", "the user that gets the key")
	cmd.Flags().StringVar(&name, "name", "", "what the key is for")
	cmd.Flags().StringVar(&expires, "expires", "", "when the key ends: 90d, 2026-12-31 or never (default never)")
	if err := cmd.MarkFlagRequired("user"); err != nil {
		panic(err) // there is no such flag
	}
	t.mayComplete(cmd, "user", t.completeUser)
	return cmd
}

// newKey prints a new key. No other command prints a key.
func (c *call) newKey(key *admin.NewKey, err error) error {
	if err != nil {
		return err
	}
	said := fmt.Sprintf("This is the key %d of the user %s. Nothing can show it again. It ends: %s.\n", key.ID, text(key.User), or(key.ExpiresAt, "never"))
	if key.Replaces != nil {
		said += fmt.Sprintf("The key %d, which it replaces, ends: %s.\n", *key.Replaces, cell(key.ReplacedAt))
	}
	return c.show(key, func(to io.Writer) error {
		fmt.Fprint(c.cmd.ErrOrStderr(), said)
		_, err := io.WriteString(to, key.Key+"\n")
		return err
	})
}

func keyRow(k *admin.Key) row {
	return row{
		"ID", k.ID, "KEY", k.Hint, "USER", k.User, "NAME", k.Name, "STATE", k.State, "EXPIRES", or(k.ExpiresAt, "never"),
		"REVOKED", k.RevokedAt, "REPLACED BY", k.ReplacedBy, "CREATED", k.CreatedAt,
	}
}

func keysList(t *tool) *cobra.Command {
	user := ""
	cmd := &cobra.Command{
		Use:   "list [--user USER]",
		Short: "Lists the API keys, by their first characters",
		Example: `  caddy pg-ratelimit keys list
  caddy pg-ratelimit keys list --user acme --json`,
		Args: arguments(),
		RunE: t.on(func(c *call) error {
			keys, err := c.db.Keys(c.ctx, user)
			return showList(c, keys, err, keyRow, "There are no keys.")
		}),
	}
	cmd.Flags().StringVar(&user, "user", "", "keys of this user only")
	t.mayComplete(cmd, "user", t.completeUser)
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
		Args:              arguments("ID"),
		ValidArgsFunction: t.completeOne(validKeys),
		RunE: t.onKey(func(c *call, id int64) error {
			key, err := c.db.RevokeKey(c.ctx, id)
			if err != nil {
				return err
			}
			return c.done(key, fmt.Sprintf("The key %d of the user %s is revoked since %s.", key.ID, text(key.User), cell(key.RevokedAt)))
		}),
	}
}

func keysRotate(t *tool) *cobra.Command {
	grace := ""
	cmd := &cobra.Command{
		Use:   "rotate ID [--grace 24h]",
		Short: "Makes an API key in place of another one, and ends that one after a grace",
		Long: `Makes an API key with the name, the end, the overrides and the bans of another one, and
prints it like keys create. The old key is valid until the grace has passed: if it has
leaked, give --grace 0s. Limits that count by key count the new key from zero; those that
count by user go on.`,
		Example: `  caddy pg-ratelimit keys rotate 7 --grace 24h

  # the key has leaked
  caddy pg-ratelimit keys rotate 7 --grace 0s`,
		Args:              arguments("ID"),
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
