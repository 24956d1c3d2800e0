package command

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Cobra's own checks of arguments repeat the arguments in their errors. One of them may be an
// API key.

// arguments checks the number of the arguments of a command, and its flags. Its Use has their names after that of
// the command and before all flags. If the Use has "...", there may be more of them.
func arguments(cmd *cobra.Command, args []string) error {
	line, _, _ := strings.Cut(strings.ReplaceAll(cmd.Use, " ...", "…")+" ", " [")
	line, _, _ = strings.Cut(line, " --")
	names := strings.Fields(line)[1:]
	if len(args) == len(names) || len(args) > len(names) && strings.Contains(cmd.Use, "...") {
		return checkFlags(cmd)
	}
	if len(names) == 0 {
		return fmt.Errorf("%s has no arguments, and got %d: see --help", cmd.CommandPath(), len(args))
	}
	return fmt.Errorf("%s has the arguments %s, and got %d: see --help", cmd.CommandPath(), strings.Join(names, " "), len(args))
}

// group returns a command that only has subcommands. Those that are no groups check their arguments.
func group(cmd *cobra.Command, subcommands ...*cobra.Command) *cobra.Command {
	for _, c := range subcommands {
		if c.Args == nil {
			c.Args = arguments
		}
	}
	cmd.AddCommand(subcommands...)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		var names []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
		return withoutKeys(fmt.Errorf("%s: %q: must be %s", cmd.CommandPath(), args[0], edge.Among(args[0], names)))
	}
	cmd.SetFlagErrorFunc(flagError)
	return cmd
}

// secret reads an argument that may be a secret. "-" reads it from standard input, so that it
// is in no list of processes and in no history of a shell.
func (c *call) secret(name, text string) (string, error) {
	if text != "-" {
		return text, nil
	}
	const most = 64 << 10
	read, err := io.ReadAll(io.LimitReader(c.cmd.InOrStdin(), most))
	if err != nil {
		return "", fmt.Errorf("%s: reading standard input: %w", name, err)
	}
	line := strings.TrimRight(string(read), "\r\n")
	if line == "" || strings.ContainsAny(line, "\r\n") {
		return "", fmt.Errorf("%s: standard input must have it on one line", name)
	}
	return line, nil
}

// number is the flag of a list that says how many lines it has.
type number int

func (n *number) flag(cmd *cobra.Command) {
	cmd.Flags().IntVarP((*int)(n), "number", "n", int(*n), "how many")
}

// check returns an error for a number that a list cannot have.
func (n number) check() error {
	if n < 1 || n > 100000 {
		return &ratelimit.FieldError{Field: "-n", Value: strconv.Itoa(int(n)), Want: "from 1 to 100000"}
	}
	return nil
}

// end reads a flag that says when something ends, such as 90d or 2026-12-31. A duration begins
// now, by the clock of the server. "" is never, the zero time.
func (c *call) end(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	now, err := c.db.Now(c.ctx)
	if err != nil {
		return now, err
	}
	return admin.ParseUntil(flag, text, now)
}

// lasting reads the flag of how long something lasts.
func lasting(flag, text string) (time.Duration, error) {
	d, err := duration(flag, text)
	if err == nil && d == 0 {
		err = &ratelimit.FieldError{Field: flag, Value: text, Want: "above 0"}
	}
	return d, err
}

// duration reads the flag of a duration, such as 24h or 90d.
func duration(flag, text string) (time.Duration, error) {
	d, err := ratelimit.ParseWindow(text)
	if err != nil {
		return 0, &ratelimit.FieldError{Field: flag, Value: text, Want: "a duration such as 30m, 24h or 7d"}
	}
	return d, nil
}
