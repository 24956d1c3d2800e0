// Package command implements the administrator's commands, `pg-ratelimit …`, which read and change the
// policy, the history and the tables in Postgres. They are a part of Caddy, and a program of their own.
//
// A commandSpec describes a command: its usage, its flags, and usually one SQL statement. A few commands run
// Go code instead of a statement (field runGo). An invocation is one run of a command. It connects, parses
// the flags and arguments into named SQL parameters, runs the statement, and prints the rows: as tables for
// people, or as JSON with --json. A printer formats the tables. The statements use the views and functions
// that psql users call, so commands and psql show the same rows.
//
// Each change of the policy is one transaction. Only the two commands that create an API key print it.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
)

// ExpandDSN replaces the placeholders of a DSN. Its errors do not contain a password.
type ExpandDSN func(configured string) (dsn string, err error)

// globalFlags holds the persistent flags, which all commands share.
type globalFlags struct {
	dsn    string
	json   bool
	expand ExpandDSN
}

// root lists all commands.
var root = commandSpec{
	short: "Manages the rate limits, users and API keys in Postgres",
	long: `
Manages the rules, users, API keys and bans, which are rows in Postgres. All proxies on the
database apply a change within a second. The same rows are in psql: \df+ rate_limit_* lists the
functions, and \dv+ rate_limit_* the views.

--dsn or the environment variable DATABASE_URL sets the database.`,
	example: `migrate
rules set free family=plan tiers=free per_hour=1000
users set acme tier=free
keys create --user acme
explain --user acme --path /api/v1/x --ip 192.0.2.1`,
	commands: []commandSpec{
		migrateCommand, policyCommand, rulesCommand, tiersCommand, usersCommand, keysCommand, pricesCommand,
		bansCommand,
		banCommand, unbanCommand, explainCommand, topCommand, getCommand, resetCommand, changesCommand,
		nodesCommand, stateCommand, auditCommand, whyCommand, usageCommand, invoiceCommand,
		noticesCommand, pageCommand, replayCommand,
		upkeepCommand, archiveCommand, forgetCommand,
	},
}

// Build adds the help, the persistent flags and all subcommands to cmd, which is the command pg-ratelimit.
func Build(cmd *cobra.Command, expand ExpandDSN) {
	g := &globalFlags{expand: expand}
	flags := cmd.PersistentFlags()
	flags.StringVar(&g.dsn, "dsn", "", "Postgres URL or key=value pairs, or a placeholder such as "+
		"{file./run/secrets/dsn}; others on this machine can see a password in it")
	flags.BoolVar(&g.json, "json", false, "print JSON")
	cmd.Short, cmd.Long, cmd.Example = root.short, root.long, examples(root.example)
	cmd.SetFlagErrorFunc(flagError)
	g.addSubcommands(cmd, &root)
}

// commandSpec describes a command: its usage, its help, and its effect.
type commandSpec struct {
	// use lists the name of the command, its arguments and its flags, in this order. After an argument, "..."
	// means that the argument may be repeated. Each line of example is a command without the program.
	use, short, long, example string
	flags                     []flag
	// exclusive lists groups of flags that exclude each other, such as "for until".
	exclusive []string
	// noun names the row that the first argument selects, such as "rule". A subcommand without a noun has
	// that of its parent.
	noun string

	// sql selects the rows that the command prints. In sql, @NAME stands for the argument NAME, and @key_id
	// for the flag --key-id. An argument or flag that the user leaves out is NULL. If the command changes
	// rows first, beforeSQL is the statement that changes them, in the same transaction.
	beforeSQL, sql string
	// jsonOnly lists the columns that only --json prints.
	jsonOnly string
	// emptyText replaces a table without rows. The default names the noun: "There are no rules."
	emptyText string
	// failIfEmpty makes a command that prints a list fail if sql returns no row.
	failIfEmpty bool
	// singleRow makes the command print the row of sql as a list of fields, and fail if sql returns no row.
	singleRow bool
	// doneText completes "The rule x is …", which a command prints after a change to the row that its first
	// argument names. A command with a doneText fails if sql returns no row.
	doneText string
	// listedBy is the command that lists the names, for the error about a name that selects no row. The
	// default is "rules list", with the noun of the command.
	listedBy string

	// runGo, unless nil, replaces the run of sql by Go code.
	runGo func(c *invocation) error
	// offline means that the command may run without a database: invocation.run calls runGo without
	// connecting or parsing the arguments. A runGo that needs a connection calls connect.
	offline  bool
	commands []commandSpec // the subcommands
}

// flag describes a flag of a command.
type flag struct {
	// name is the long name, optionally followed by a comma and the one-letter name.
	name string
	// value is the default: a string, bool, int or []string. Nil is a string without a default.
	value any
	usage string
	kind  kind
	// required makes the command fail without the flag.
	required bool
}

// newCommand returns the cobra command for spec, with its subcommands.
func (g *globalFlags) newCommand(spec *commandSpec) *cobra.Command {
	cmd := &cobra.Command{Use: spec.use, Short: spec.short, Long: spec.long,
		Example: examples(spec.example),
		Args:    spec.checkArgCount}
	if strings.Contains(spec.use, "SETTING=VALUE") {
		cmd.Long = strings.TrimSpace(spec.short + `. Only the named settings change, all in one
transaction. Commas separate the elements of a list. SETTING= resets a setting to its default; if
SETTING is a limit or an override, SETTING= deletes it. The error for an unknown SETTING lists all
settings.

` + spec.long)
	}
	for i := range spec.flags {
		spec.flags[i].addTo(cmd)
	}
	for _, names := range spec.exclusive {
		cmd.MarkFlagsMutuallyExclusive(strings.Fields(names)...)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmp.Or(cmd.Context(), context.Background())
		c := &invocation{globalFlags: g, commandSpec: spec, ctx: ctx, cmd: cmd, args: args,
			emptyText: spec.emptyText}
		return redactError(c.run())
	}
	if len(spec.commands) > 0 {
		g.addSubcommands(cmd, spec)
	}
	return cmd
}

// addSubcommands adds spec's subcommands to cmd. The error for an unknown subcommand lists the known ones. If
// spec has no example, the help shows the first example of each subcommand.
func (g *globalFlags) addSubcommands(cmd *cobra.Command, spec *commandSpec) {
	var names []string
	for _, sub := range spec.commands {
		if sub.noun = cmp.Or(sub.noun, spec.noun); sub.noun != "" {
			sub.emptyText = cmp.Or(sub.emptyText, "There are no "+sub.noun+"s.")
		}
		c := g.newCommand(&sub)
		names = append(names, c.Name())
		cmd.AddCommand(c)
		if spec.example == "" {
			first, _, _ := strings.Cut(c.Example, "\n\n")
			cmd.Example = strings.TrimPrefix(cmd.Example+"\n"+first, "\n")
		}
	}
	if spec.sql != "" { // the command also runs by itself
		return
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return redactError(fmt.Errorf("%s: %q: must be one of %s", cmd.CommandPath(), args[0],
			strings.Join(names, ", ")))
	}
}

// examples returns the commands in lines, with the program before each.
func examples(lines string) string {
	if lines == "" {
		return ""
	}
	prefix := "  " + pg.Program + " "
	return prefix + strings.Join(strings.Split(lines, "\n"), "\n"+prefix)
}

func (f *flag) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
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
	if f.required {
		_ = cmd.MarkFlagRequired(name) // fails only for an undeclared flag
	}
}

// checkArgCount validates the number of arguments. Cobra's own check is unsuitable because its error quotes
// the arguments, and an argument may be an API key.
func (s *commandSpec) checkArgCount(cmd *cobra.Command, args []string) error {
	names := argumentNames(cmd.Use)
	switch {
	case len(args) == len(names) || len(args) > len(names) && strings.Contains(cmd.Use, "..."):
		return nil
	case len(names) == 0:
		return fmt.Errorf("%s takes no arguments, but got %d: see --help", cmd.CommandPath(), len(args))
	}
	return fmt.Errorf("%s takes the arguments %s, but got %d: see --help", cmd.CommandPath(),
		strings.Join(names, " "), len(args))
}

// argumentNames returns the names of the arguments in a usage line.
func argumentNames(use string) []string {
	line, _, _ := strings.Cut(strings.ReplaceAll(use, " ...", "…")+" ", " [")
	line, _, _ = strings.Cut(line, " --")
	return strings.Fields(line)[1:]
}

// flagError rewords an error of pflag in the form of the errors of this package, FIELD: VALUE: must be WANT.
// The error for an unknown short flag does not quote the flag. The flag may be a secret, because pflag parses
// an API key that begins with "-" as short flags.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var missingValue *pflag.ValueRequiredError
	var invalidValue *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "":
		var names []string
		cmd.Flags().VisitAll(func(flag *pflag.Flag) { names = append(names, "--"+flag.Name) })
		err = fmt.Errorf("--%s: %s has no such flag: must be one of %s", unknown.GetSpecifiedName(),
			cmd.CommandPath(), strings.Join(names, ", "))
	case errors.As(err, &missingValue):
		err = invalid("--"+missingValue.GetFlag().Name, "", "given with a value: "+
			missingValue.GetFlag().Usage)
	case errors.As(err, &invalidValue):
		want := "a whole number"
		if invalidValue.GetFlag().Value.Type() == "bool" {
			want = "true or false"
		}
		err = invalid("--"+invalidValue.GetFlag().Name, invalidValue.GetValue(), want)
	default:
		err = fmt.Errorf("%s has no such short flag: see --help", cmd.CommandPath())
	}
	return redactError(err)
}
