package command_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pgratelimit/pg-ratelimit/admin/command"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

// runProgram runs Caddy as a process in the test's folder, and returns its output and exit status.
func (s *shell) runProgram(environment []string, args ...string) (output, int) {
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

// writeFile writes a file into the test's folder.
func (s *shell) writeFile(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// The DSN comes from --dsn, else from DATABASE_URL, and may have placeholders. A missing or invalid DSN is an
// error. No error about the DSN or the connection contains the password.
func TestDSNSourcesAndSecrecy(t *testing.T) {
	s := newShell(t, schema.File)
	s.mustRun("rules", "set", "plan", "per_hour=7")
	s.writeFile("dsn", s.dsn+"\n")
	list := []string{"pg-ratelimit", "rules", "list"}
	for _, c := range []struct {
		name        string
		environment []string
		args        []string
		err         string // a part of the error; "" if the command succeeds
	}{
		{name: "flag", environment: []string{"DATABASE_URL=postgres://elsewhere/x"},
			args: []string{"--dsn", s.dsn}},
		{name: "environment", environment: []string{"DATABASE_URL=" + s.dsn}},
		{name: "placeholder", environment: []string{"LIMITS=" + s.dsn},
			args: []string{"--dsn", "{env.LIMITS}"}},
		{name: "file", environment: []string{"DATABASE_URL={file.dsn}"}},
		{name: "no DSN", err: "dsn: missing: must be a database: give --dsn, or set DATABASE_URL"},
		{name: "memory", args: []string{"--dsn", "memory"},
			err: `dsn: "memory": must be a Postgres URL or key=value pairs`},
		{name: "invalid DSN", args: []string{"--dsn", "postgres://user:hunter2@host:port/x"}, err: "dsn: "},
		{name: "no server", args: []string{"--dsn", "postgres://user:hunter2@127.0.0.1:1/x"},
			err: "dsn: no connection to the database: failed to connect"},
	} {
		out, status := s.runProgram(c.environment, append(list, c.args...)...)
		if strings.Contains(out.stdout+out.stderr, "hunter2") {
			t.Errorf("%s: output %q, want it without the password", c.name, out.stdout+out.stderr)
		}
		if c.err == "" {
			if status != 0 || !strings.Contains(out.stdout, "per_hour 7/1h") {
				t.Errorf("%s: status %d, stdout %q, stderr %q; want status 0 and the rule", c.name, status,
					out.stdout, out.stderr)
			}
		} else if status != 1 || out.stdout != "" || !strings.Contains(out.stderr, c.err) {
			t.Errorf("%s: status %d, stdout %q, stderr %q; want status 1 and only the error %q", c.name,
				status, out.stdout, out.stderr, c.err)
		}
	}
}

// example matches a command in the examples of --help, without the pipe or redirection after the command.
var example = regexp.MustCompile(`(?m)^ *(caddy .*?)( [|><] .*)?$`)

// Every example in --help runs: the command exists, and its flags and number of arguments are valid.
func TestHelpExamplesAreValid(t *testing.T) {
	root := &cobra.Command{Use: "caddy"}
	tool := &cobra.Command{Use: "pg-ratelimit"}
	command.Build(tool, nil)
	root.AddCommand(tool)
	examples := 0
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, line := range example.FindAllStringSubmatch(cmd.Example, -1) {
			target, args, err := root.Find(splitWords(t, line[1])[1:])
			if err == nil {
				err = target.ParseFlags(args)
			}
			if err == nil && target.Args != nil {
				err = target.ValidateArgs(target.Flags().Args())
			}
			if err != nil || isGroup(target) {
				t.Errorf("the example %q: error %v, want a command with its flags", line[1], err)
			}
			// The next example of the command must not inherit the flags of this one.
			target.Flags().VisitAll(func(flag *pflag.Flag) { flag.Changed = false })
			examples++
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(tool)
	if examples < 25 {
		t.Errorf("the help has %d examples, want at least 25", examples)
	}
}
