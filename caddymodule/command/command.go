// Package command has the commands `caddy pg-ratelimit …`. Most are an entry of a table: words, SQL, and what
// people see of its rows. psql gets the same rows of the same views and functions.
//
//   - command.go: the root, the entries, and how cobra has them
//   - run.go: how an entry runs; what is asked of the database
//   - values.go: what flags and arguments say
//   - print.go: JSON for programs, tables for people
//   - errors.go: errors of the server, and locks that others hold
//   - policy.go, set.go, keys.go: the entries on the policy
//   - history.go, follow.go, requests.go: those on requests, recorded or described
//   - tables.go, archive.go, page.go: those on the tables, their archive, the page and the settings
//
// No error contains an API key.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ExpandDSN replaces the placeholders of a DSN. shown replaces the DSN in errors.
type ExpandDSN func(configured string) (dsn, shown string, err error)

// New returns the command with all its subcommands, for caddycmd.RegisterCommand.
func New(expand ExpandDSN) caddycmd.Command {
	return caddycmd.Command{
		Name:  "pg-ratelimit",
		Usage: "<command>",
		Short: "Manages the rate limits, users and API keys in Postgres",
		Long: `
Manages the rules, users, API keys and bans, which are rows in Postgres. All proxies on the
database apply a change within a second. psql gets the same rows: \df+ rate_limit_* and
\dv+ rate_limit_* list the functions and views.

The database is that of --dsn, or of the environment variable DATABASE_URL.`,
		CobraFunc: func(cmd *cobra.Command) { build(cmd, expand) },
	}
}

// tool holds the flags of the root, which all commands share.
type tool struct {
	dsn    string
	json   bool
	expand ExpandDSN
}

// root has all commands.
var root = entry{
	example: `  caddy pg-ratelimit migrate
  caddy pg-ratelimit rules set free family=plan tiers=free per_hour=1000
  caddy pg-ratelimit users set acme tier=free
  caddy pg-ratelimit keys create --user acme
  caddy pg-ratelimit explain --user acme --path /api/v1/x --ip 192.0.2.1`,
	commands: []entry{
		migrateCommand, policyCommand, rulesCommand, tiersCommand, usersCommand, keysCommand, bansCommand,
		banCommand, unbanCommand, explainCommand, topCommand, getCommand, resetCommand, changesCommand,
		nodesCommand, stateCommand, auditCommand, whyCommand, usageCommand, pageCommand, replayCommand,
		upkeepCommand, archiveCommand, forgetCommand,
	},
}

// build adds the commands to the root, which Caddy has made.
func build(cmd *cobra.Command, expand ExpandDSN) {
	t := &tool{expand: expand}
	flags := cmd.PersistentFlags()
	flags.StringVar(&t.dsn, "dsn", "", "Postgres URL or key=value pairs, or a placeholder such as "+
		"{file./run/secrets/dsn}; others on this machine can see a password in it")
	flags.BoolVar(&t.json, "json", false, "print JSON")
	cmd.Example = root.example
	cmd.SetFlagErrorFunc(flagError)
	t.group(cmd, &root)
}

// entry is a command: what people write, what its help says, and what it does.
type entry struct {
	// use has the names of the arguments after that of the command and before all flags. With "...", there
	// may be more of them.
	use, short, long, example string
	flags                     []flag
	// alone lists flags that exclude each other, as in "for until", and together those that need each other.
	alone    []string
	together string
	// kind names the kind of row of the first argument, here and in the entries below.
	kind string
	// args are the kinds of the first arguments, see read; "" is a text.
	args []string

	// sql has the rows that the command prints. @NAME is an argument, @key_id the flag --key-id; NULL: not
	// given. before is a call that comes first, and after one that comes last.
	before, sql, after string
	// choose returns sql and empty for the flags.
	choose func(c *call) (sql, empty string, err error)
	// hide lists the columns that --json alone prints. With one, there is one row. parts are further lists.
	hide  string
	one   bool
	parts []part
	// empty is printed for people in place of an empty list.
	empty string
	// becomes is the outcome of a command that changes the row of the first argument. sql then returns NULL
	// or false if the row is missing.
	becomes string
	// lacks is SQL for the rest of the error about a row that is missing; "" is that of known. With it, an
	// empty list is that error.
	lacks string

	// do runs a command that is not SQL. An offline command needs no database, or finds it itself.
	do       func(c *call) error
	offline  bool
	commands []entry
}

// part is a list with a title.
type part struct{ title, sql string }

// flag is a flag of a command.
type flag struct {
	// name is the long name, and after a comma the letter.
	name string
	// value is its default, and has its type: string, bool, int or []string.
	value any
	usage string
	kind  string // see read
	// choices are the only values; one that is a list has several with commas between them.
	choices []string
	list    bool
	// needed: the command fails without the flag.
	needed bool
}

// build makes the command of an entry, and those below it.
func (t *tool) build(e *entry) *cobra.Command {
	cmd := &cobra.Command{Use: e.use, Short: e.short, Long: e.long, Example: e.example, Args: e.check}
	if strings.Contains(e.use, "SETTING=VALUE") {
		cmd.Long = strings.TrimSpace(e.short + `. The settings that are named change, in one
transaction, and the others stay. Lists have commas. An empty value takes a setting back to its
default, and deletes a limit or an override. A name that is not a setting lists them.

` + e.long)
	}
	for i := range e.flags {
		e.flags[i].add(cmd.Flags())
	}
	if e.together != "" {
		cmd.MarkFlagsRequiredTogether(strings.Fields(e.together)...)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c := &call{tool: t, entry: e, ctx: cmp.Or(cmd.Context(), context.Background()), cmd: cmd, args: args}
		return withoutKeys(c.run())
	}
	if len(e.commands) > 0 {
		t.group(cmd, e)
	}
	return cmd
}

// group adds the commands below that of an entry, and says which there are if a word is none of them. Their
// first examples are those of an entry without examples.
func (t *tool) group(cmd *cobra.Command, e *entry) {
	var names []string
	for _, below := range e.commands {
		below.kind = cmp.Or(below.kind, e.kind)
		c := t.build(&below)
		names = append(names, c.Name())
		cmd.AddCommand(c)
		if e.example == "" {
			first, _, _ := strings.Cut(c.Example, "\n\n")
			cmd.Example = strings.TrimPrefix(cmd.Example+"\n"+first, "\n")
		}
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return withoutKeys(fmt.Errorf("%s: %q: must be one of %s", cmd.CommandPath(), args[0],
			strings.Join(names, ", ")))
	}
}

func (f *flag) add(flags *pflag.FlagSet) {
	name, short, _ := strings.Cut(f.name, ",")
	switch value := f.value.(type) {
	case nil:
		flags.StringP(name, short, "", f.usage)
	case string:
		flags.StringP(name, short, value, f.usage)
	case bool:
		flags.BoolP(name, short, value, f.usage)
	case int:
		flags.IntP(name, short, value, f.usage)
	case []string:
		flags.StringArrayP(name, short, value, f.usage)
	}
}

// check checks the number of the arguments of a command, and its flags. Cobra's own checks repeat the
// arguments in their errors, and one of them may be an API key.
func (e *entry) check(cmd *cobra.Command, args []string) error {
	names := argumentNames(cmd.Use)
	if len(args) < len(names) || len(args) > len(names) && !strings.Contains(cmd.Use, "...") {
		if len(names) == 0 {
			return fmt.Errorf("%s has no arguments, and got %d: see --help", cmd.CommandPath(), len(args))
		}
		return fmt.Errorf("%s has the arguments %s, and got %d: see --help", cmd.CommandPath(),
			strings.Join(names, " "), len(args))
	}
	// Cobra checks flags later, in its own words.
	for i := range e.flags {
		if f := &e.flags[i]; f.needed && !cmd.Flags().Changed(f.name) {
			return missing(cmd.Flags().Lookup(f.name))
		}
	}
	for _, names := range e.alone {
		var given []string
		for _, name := range strings.Fields(names) {
			if cmd.Flags().Changed(name) {
				given = append(given, "--"+name)
			}
		}
		if len(given) > 1 {
			return fmt.Errorf("%s: only one of these flags may be given", strings.Join(given, " and "))
		}
	}
	return nil
}

// argumentNames returns the names of the arguments in a Use.
func argumentNames(use string) []string {
	line, _, _ := strings.Cut(strings.ReplaceAll(use, " ...", "…")+" ", " [")
	line, _, _ = strings.Cut(line, " --")
	return strings.Fields(line)[1:]
}

// flagError says in the words of our other errors what cobra and pflag say about a flag. It does not
// repeat the letters of an unknown short flag, which may be a part of an API key.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var empty *pflag.ValueRequiredError
	var wrong *pflag.InvalidValueError
	var malformed *pflag.InvalidSyntaxError
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		err = fmt.Errorf("%s has no such short flag: see --help", cmd.CommandPath())
	case errors.As(err, &unknown):
		var names []string
		cmd.Flags().VisitAll(func(flag *pflag.Flag) { names = append(names, "--"+flag.Name) })
		err = fmt.Errorf("--%s: %s has no such flag: must be one of %s", unknown.GetSpecifiedName(),
			cmd.CommandPath(), strings.Join(names, ", "))
	case errors.As(err, &empty):
		err = missing(empty.GetFlag())
	case errors.As(err, &wrong):
		want := "a whole number"
		if wrong.GetFlag().Value.Type() == "bool" {
			want = "true or false"
		}
		err = must(shown(wrong.GetFlag()), wrong.GetValue(), want)
	case errors.As(err, &malformed):
		err = fmt.Errorf("%s: must be --name, or --name and a value", malformed.GetSpecifiedFlag())
	}
	return withoutKeys(err)
}

// shown is a flag as the other errors name it.
func shown(flag *pflag.Flag) string {
	if flag.Name == "number" {
		return "-" + flag.Shorthand
	}
	return "--" + flag.Name
}

// missing is the error about a flag without a value, or one that must be given and is not.
func missing(flag *pflag.Flag) error {
	return must(shown(flag), "", "given with a value: "+flag.Usage)
}
