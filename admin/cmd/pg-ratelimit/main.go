// Command pg-ratelimit manages the rate limits in Postgres, and serves the page about them, without a Caddy:
//
//	go install github.com/pgratelimit/pg-ratelimit/admin/cmd/pg-ratelimit@latest
package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	// The time zones, for machines without them.
	_ "time/tzdata"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/admin/command"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func main() {
	if newCommand().Execute() != nil { // Execute prints the error
		os.Exit(1)
	}
}

// newCommand returns the command pg-ratelimit with all its subcommands.
func newCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "pg-ratelimit", Version: host.Version, SilenceUsage: true}
	command.Build(cmd, expandDSN)
	return cmd
}

var placeholder = regexp.MustCompile(`\{(env|file)\.([^{}]+)\}`)

// expandDSN replaces {env.NAME} and {file.PATH} in a DSN, as Caddy does.
func expandDSN(configured string) (dsn string, err error) {
	dsn = placeholder.ReplaceAllStringFunc(configured, func(found string) string {
		parts := placeholder.FindStringSubmatch(found)
		text, want := os.Getenv(parts[2]), "the name of a variable of the environment"
		if parts[1] == "file" {
			data, failure := os.ReadFile(parts[2])
			text, want = strings.TrimRight(string(data), "\r\n"), fmt.Sprint("a file with text: ", failure)
		}
		if text == "" {
			err = &ratelimit.FieldError{Field: "dsn", Value: found, Want: want}
		}
		return text
	})
	return dsn, err
}
