package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// entry is a command: what people write, what its help says, and what it does.
type entry struct {
	// use has the names of the arguments after that of the command and before all flags. With "...", there may be
	// more of them.
	use, short, long, example string
	flags                     []flag
	// alone are flags of which one may be given, as in "for until", and together those that need each other.
	alone    []string
	together string
	// kind is what the first argument names, also of the entries below.
	kind string
	// args read the first arguments.
	args []reader
	// of is the database on which the command works.
	of dataset
	// list is what the command lists, empty what people see of an empty list, and below what they see below others.
	list  lister
	empty func(c *call) string
	below func(c *call, p *page, all []line)
	// change is what a command does that changes what the first argument names. It returns what that then is: deleted.
	change func(c *call) (is string, err error)
	// do is what any other command does. It is nil of an entry that only has others below it.
	do       func(c *call) error
	commands []entry
}

// flag is a flag of a command.
type flag struct {
	// name is the long name, and after a comma the letter.
	name string
	// value is its default, and has its type: string, bool, int or []string.
	value any
	usage string
	read  reader // of a string or an int; nil of others
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
		cmd.Long += "\n\nThe settings are the columns that docs/policy.md describes. A name that is none of them lists them."
	}
	for i := range e.flags {
		t.addFlag(cmd, &e.flags[i])
	}
	if e.list != nil {
		e.do = func(c *call) error { return c.print(e) }
	}
	if e.change != nil {
		e.do = func(c *call) error {
			is, err := e.change(c)
			return c.changed(err, e.kind, c.args[0], is)
		}
	}
	for _, names := range e.alone {
		cmd.MarkFlagsMutuallyExclusive(strings.Fields(names)...)
	}
	if e.together != "" {
		cmd.MarkFlagsRequiredTogether(strings.Fields(e.together)...)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		c := &call{tool: t, ctx: ctx, cmd: cmd, args: args, kind: e.kind}
		return withoutKeys(c.run(e.of, func(c *call) error {
			if err := c.read(e); err != nil {
				return err
			}
			return e.do(c)
		}))
	}
	if len(e.commands) > 0 {
		t.group(cmd, e)
	}
	return cmd
}

// group adds the commands below that of an entry, and says which there are if a word is none of them. Their first examples are
// those of an entry without examples.
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
	run := cmd.RunE
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 0:
			return withoutKeys(fmt.Errorf("%s: %q: must be one of %s", cmd.CommandPath(), args[0], strings.Join(names, ", ")))
		case e.do == nil:
			return cmd.Help()
		}
		return run(cmd, args)
	}
}

func (t *tool) addFlag(cmd *cobra.Command, f *flag) {
	flags := cmd.Flags()
	name, short, _ := strings.Cut(f.name, ",")
	switch value := f.value.(type) {
	case string:
		flags.StringP(name, short, value, f.usage)
	case bool:
		flags.BoolP(name, short, value, f.usage)
	case int:
		flags.IntP(name, short, value, f.usage)
	case []string:
		if f.list {
			flags.StringSliceP(name, short, value, f.usage)
		} else {
			flags.StringArrayP(name, short, value, f.usage)
		}
	}
	if f.needed {
		must(cmd.MarkFlagRequired(name))
	}
}

// must panics if a command has no such flag.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// check checks the number of the arguments of a command, and its flags. Cobra's own checks repeat the arguments in
// their errors, and one of them may be an API key.
func (e *entry) check(cmd *cobra.Command, args []string) error {
	names := argumentNames(cmd.Use)
	if len(args) == len(names) || len(args) > len(names) && strings.Contains(cmd.Use, "...") {
		return e.checkFlags(cmd.Flags())
	}
	if len(names) == 0 {
		return fmt.Errorf("%s has no arguments, and got %d: see --help", cmd.CommandPath(), len(args))
	}
	return fmt.Errorf("%s has the arguments %s, and got %d: see --help", cmd.CommandPath(), strings.Join(names, " "), len(args))
}

// argumentNames are those that a Use has.
func argumentNames(use string) []string {
	line, _, _ := strings.Cut(strings.ReplaceAll(use, " ...", "…")+" ", " [")
	line, _, _ = strings.Cut(line, " --")
	return strings.Fields(line)[1:]
}

// checkFlags checks the flags that must be given, and those of which only one may be. Cobra checks both later, in its
// own words.
func (e *entry) checkFlags(flags *pflag.FlagSet) error {
	for i := range e.flags {
		if f := &e.flags[i]; f.needed && !flags.Changed(f.name) {
			return missing(flags.Lookup(f.name))
		}
	}
	for _, names := range e.alone {
		var given []string
		for _, name := range strings.Fields(names) {
			if flags.Changed(name) {
				given = append(given, "--"+name)
			}
		}
		if len(given) > 1 {
			return fmt.Errorf("%s: only one of these flags may be given", strings.Join(given, " and "))
		}
	}
	return nil
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
		err = fmt.Errorf("--%s: %s has no such flag: must be one of %s", unknown.GetSpecifiedName(), cmd.CommandPath(), strings.Join(names, ", "))
	case errors.As(err, &empty):
		err = missing(empty.GetFlag())
	case errors.As(err, &wrong):
		want := wrong.GetFlag().Usage
		switch wrong.GetFlag().Value.Type() {
		case "bool":
			want = "true or false"
		case "int":
			want = "a whole number"
		}
		err = &ratelimit.FieldError{Field: shown(wrong.GetFlag()), Value: wrong.GetValue(), Want: want}
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
	return &ratelimit.FieldError{Field: shown(flag), Want: "given with a value: " + flag.Usage}
}
