package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// build runs the command o.build, which builds Caddy, unless it is "". When the context ends, build
// interrupts the command, which then ends its compilers.
func build(ctx context.Context, o options, out io.Writer) error {
	if o.build == "" {
		return nil
	}
	if _, err := os.Stat(o.caddy); err != nil {
		fmt.Fprintln(out, "Caddy: building it. The first time, this takes some minutes ...")
	}
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", o.build)
	cmd.Stdout, cmd.Stderr = &output, &output
	// The command is in its own process group, so that Ctrl-C reaches it only through this program.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = caddyStop
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("building Caddy: %w: %s", err, lastLines(output.String()))
	}
	return nil
}

// lastLines returns the last five lines of a log.
func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}
