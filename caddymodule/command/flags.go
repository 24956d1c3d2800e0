package command

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

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
		err = fmt.Errorf("--%s: %s has no such flag%s: see --help", unknown.GetSpecifiedName(), cmd.CommandPath(), edge.DidYouMean("--"+unknown.GetSpecifiedName(), flagNames(cmd)))
	case errors.As(err, &empty):
		err = missing(empty.GetFlag())
	case errors.As(err, &wrong):
		want := wrong.GetFlag().Usage
		switch wrong.GetFlag().Value.Type() {
		case "bool":
			want = "true or false"
		case "int", "int64":
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

// flagNames are the flags of a command.
func flagNames(cmd *cobra.Command) []string {
	var names []string
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			names = append(names, "--"+flag.Name)
		}
	})
	return names
}

// exclusive is the annotation of cobra on flags of which one may be given: their names.
const exclusive = "cobra_annotation_mutually_exclusive"

// checkFlags checks the flags of a command that must be given, and those of which only one may be. Cobra
// checks both later, in its own words.
func checkFlags(cmd *cobra.Command) (err error) {
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if err == nil && len(flag.Annotations[cobra.BashCompOneRequiredFlag]) > 0 && !flag.Changed {
			err = missing(flag)
		}
		for _, group := range flag.Annotations[exclusive] {
			var given []string
			for _, name := range strings.Fields(group) {
				if cmd.Flags().Changed(name) {
					given = append(given, "--"+name)
				}
			}
			if err == nil && len(given) > 1 {
				err = fmt.Errorf("%s: only one of these flags may be given", strings.Join(given, " and "))
			}
		}
	})
	return err
}
