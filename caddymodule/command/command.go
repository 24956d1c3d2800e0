// Package command has the commands `caddy pg-ratelimit …`, which show and change the policy in a
// database. Package admin does the work.
//
//   - command.go: the root, and how a command runs
//   - table.go: a command is an entry of a table, and how cobra has it
//   - values.go: what flags and arguments say
//   - connect.go: which database
//   - output.go: JSON for programs, tables for people
//   - policy.go, rules.go, people.go, keys.go, explain.go, counters.go: the entries on the policy
//   - proxies.go, page.go, tables.go: those on the proxies, their page and settings, and the tables
//   - audit.go, follow.go, replay.go, archive.go: those on the history, and on the log of changes
//
// No error contains an API key.
package command

import (
	"context"
	"errors"
	"regexp"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// ExpandDSN replaces the placeholders of a DSN in a configuration. shown is what an error may
// show instead.
type ExpandDSN func(configured string) (dsn, shown string, err error)

// New returns the command with all its subcommands, for caddycmd.RegisterCommand.
func New(expand ExpandDSN) caddycmd.Command {
	return caddycmd.Command{
		Name:  "pg-ratelimit",
		Usage: "<command>",
		Short: "Manages the rate limits, users and API keys in Postgres",
		Long: `
Manages the policy of pg_ratelimit: the rules, users, API keys and bans that are rows in
Postgres. All proxies on the database obey a change within a second.

The database is that of --dsn, or of the configuration in --config, or of the environment
variable DATABASE_URL, or of the Caddyfile in this folder. If a configuration has the policy or the
history in another database than the counters, each command uses the one that has what it shows.`,
		CobraFunc: func(cmd *cobra.Command) { build(cmd, expand) },
	}
}

// tool is what the commands share: the flags of the root.
type tool struct {
	dsn, config, adapter string
	json                 bool
	expand               ExpandDSN
}

// root has all commands.
var root = entry{
	example: `  caddy pg-ratelimit migrate
  caddy pg-ratelimit rules set free family=plan tiers=free per_hour=1000
  caddy pg-ratelimit users set acme tier=free
  caddy pg-ratelimit keys create --user acme
  caddy pg-ratelimit explain --user acme --path /api/v1/x --ip 192.0.2.1`,
	commands: []entry{
		migrateCommand, policyCommand, rulesCommand, tiersCommand, usersCommand, keysCommand, bansCommand, banCommand, unbanCommand,
		explainCommand, topCommand, getCommand, resetCommand, changesCommand, nodesCommand, settingsCommand,
		auditCommand, usageCommand, pageCommand, replayCommand, upkeepCommand, archiveCommand, forgetCommand,
	},
}

// build adds the commands to the root, which Caddy has made.
func build(cmd *cobra.Command, expand ExpandDSN) {
	t := &tool{expand: expand}
	flags := cmd.PersistentFlags()
	flags.StringVar(&t.dsn, "dsn", "", "Postgres URL or key=value pairs; others on this machine can see a password in it")
	flags.StringVarP(&t.config, "config", "c", "", "Caddyfile, or other configuration, that names the database")
	flags.StringVarP(&t.adapter, "adapter", "a", "", "config adapter, if --config is not a Caddyfile or JSON")
	flags.BoolVar(&t.json, "json", false, "print JSON")
	cmd.Example = root.example
	cmd.SetFlagErrorFunc(flagError)
	t.group(cmd, &root)
}

// call is a run of a command on a database.
type call struct {
	*tool
	ctx  context.Context
	db   *admin.Database // nil of a command that needs none
	cmd  *cobra.Command
	args []string
	kind string // that of the entry
	// values are those of flags and arguments that have readers, by name, and times the period of since and until.
	values map[string]any
	times  admin.Period
	// printsKey: the command makes a key, and prints it.
	printsKey bool
}

// run connects to the database of a dataset, and does something on it.
func (c *call) run(of dataset, do func(c *call) error) error {
	if of != ofNone {
		if err := c.open(of); err != nil {
			return err
		}
		defer func() { c.db.Close() }()
	}
	return do(c)
}

// open connects to the database of a dataset, instead of that to which the call is connected.
func (c *call) open(of dataset) error {
	all, err := c.databases()
	if err != nil {
		return err
	}
	if of == ofAll && !all.same() {
		return errors.New("the configuration has the counters, the policy and the history in several databases: run this command for each, with --dsn")
	}
	if c.db != nil && all.same() {
		return nil
	}
	if all[of] == settings.MemoryDSN {
		return &ratelimit.FieldError{Field: "dsn", Value: all[of], Want: "a Postgres URL or key=value pairs: counters in memory are only in the proxy"}
	}
	db, err := admin.Open(c.ctx, all[of])
	if err != nil {
		return err
	}
	if c.db != nil {
		c.db.Close()
	}
	if !all.same() {
		db.Elsewhere(all[ofPolicy], all[ofCounters])
	}
	c.db = db
	return nil
}

// apiKeys matches API keys in a text, also mistyped ones.
var apiKeys = regexp.MustCompile(regexp.QuoteMeta(policy.KeyPrefix) + `[0-9A-Za-z]{5,}`)

// withoutKeys hides the API keys in the text of an error. An argument in a wrong place may be a
// key.
func withoutKeys(err error) error {
	if err == nil || !apiKeys.MatchString(err.Error()) {
		return err
	}
	return errors.New(hideKeys(err.Error()))
}

// hideKeys replaces the API keys in a text.
func hideKeys(text string) string { return apiKeys.ReplaceAllString(text, policy.KeyPrefix+"...") }
