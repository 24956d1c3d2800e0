package command_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pgratelimit/pg-ratelimit/caddymodule/command"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

// program runs Caddy as a process in a folder of its own.
func (s *shell) program(environment []string, args ...string) (output, int) {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(
		[]string{asCaddy + "=1", "HOME=" + s.t.TempDir(), "PATH=" + os.Getenv("PATH")},
		environment...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	status := 0
	var exited *exec.ExitError
	if errors.As(err, &exited) {
		status, err = exited.ExitCode(), nil
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return output{stdout: stdout.String(), stderr: stderr.String()}, status
}

// write writes a file into the folder of the test.
func (s *shell) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func TestTheProgramFindsTheDatabase(t *testing.T) {
	s := newShell(t, schema.File)
	s.must("rules", "set", "plan", "per_hour=7")
	s.write("dsn", s.dsn+"\n")
	list := []string{"pg-ratelimit", "rules", "list"}
	for _, c := range []struct {
		name        string
		environment []string
		args        []string
		wrong       string // a part of the error; "" if the rule is listed
	}{
		{"the flag", []string{"DATABASE_URL=postgres://elsewhere/x"}, []string{"--dsn", s.dsn}, ""},
		{"the environment", []string{"DATABASE_URL=" + s.dsn}, nil, ""},
		{"a placeholder", []string{"LIMITS=" + s.dsn}, []string{"--dsn", "{env.LIMITS}"}, ""},
		{"a file", []string{"DATABASE_URL={file.dsn}"}, nil, ""},
		{"nothing", nil, nil, "dsn: missing: must be a database: give --dsn, or set DATABASE_URL"},
		{"memory", nil, []string{"--dsn", "memory"},
			`dsn: "memory": must be a Postgres URL or key=value pairs`},
		{"a wrong DSN", nil, []string{"--dsn", "postgres://user:hunter2@host:port/x"}, "dsn: "},
		{"a server that is not there", nil, []string{"--dsn", "postgres://user:hunter2@127.0.0.1:1/x"},
			"127.0.0.1"},
	} {
		out, status := s.program(c.environment, append(list, c.args...)...)
		if strings.Contains(out.stdout+out.stderr, "hunter2") {
			t.Errorf("%s: it prints %q, want no password in it", c.name, out.stderr)
		}
		if c.wrong == "" {
			if status != 0 || !strings.Contains(out.stdout, "per_hour 7/1h") {
				t.Errorf("%s: status %d, %q, %q; want status 0 and the rule", c.name, status, out.stdout,
					out.stderr)
			}
		} else if status != 1 || out.stdout != "" || !strings.Contains(out.stderr, c.wrong) {
			t.Errorf("%s: status %d, %q, %q, want status 1 and %q", c.name, status, out.stdout, out.stderr,
				c.wrong)
		}
	}
}

// TestTheExamplesAreCommands: every example in --help is a command with its flags.
func TestTheExamplesAreCommands(t *testing.T) {
	root := &cobra.Command{Use: "caddy"}
	tool := &cobra.Command{Use: "pg-ratelimit"}
	command.New(nil).CobraFunc(tool)
	root.AddCommand(tool)
	seen := 0
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Example) {
			line = strings.TrimSpace(line)
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			line, _, _ = strings.Cut(line, " | ")
			line, _, _ = strings.Cut(line, " > ")
			line, _, _ = strings.Cut(line, " < ")
			found, rest, err := root.Find(words(t, line)[1:])
			if err == nil {
				err = found.ParseFlags(rest)
			}
			if err == nil && found.Args != nil {
				err = found.ValidateArgs(found.Flags().Args())
			}
			// A command with flags of its own does something beside its subcommands.
			if err != nil || found.HasSubCommands() && !strings.Contains(found.Use, "[") {
				t.Errorf("%q: %v, want a command with its flags", line, err)
			}
			found.Flags().VisitAll(func(flag *pflag.Flag) { flag.Changed = false })
			seen++
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(tool)
	if seen < 25 {
		t.Errorf("%d examples, want all", seen)
	}
}
