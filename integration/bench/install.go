package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// install finds the programs that the rows need and that Debian has packages
// of, and installs those that are missing.
func (b *bench) install(ctx context.Context) error {
	if !b.needs(onCaddy, onTraefik) {
		return nil
	}
	var err error
	if b.wrk, err = b.tool(ctx, "wrk", "wrk"); err != nil {
		return err
	}
	for _, r := range b.rows {
		if r.proxy.redis {
			b.redisServer, err = b.tool(ctx, "redis-server", "redis-server")
			return err
		}
	}
	return nil
}

// needs tells whether anything is measured that needs a proxy of these kinds.
func (b *bench) needs(kinds ...proxyKind) bool {
	for _, k := range kinds {
		if k == onCaddy && (b.wants(namePace) || b.wants(nameAllocations) || b.wants(nameMemory)) {
			return true
		}
		for _, r := range b.rows {
			if r.proxy.kind == k {
				return true
			}
		}
	}
	return false
}

// tool finds a program, or installs Debian's package of it.
func (b *bench) tool(ctx context.Context, program, pkg string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	missing := fmt.Errorf("no %s on this machine: install it (Debian, Ubuntu: apt-get install %s), or leave out what needs it with -only", program, pkg)
	if _, err := exec.LookPath("apt-get"); err != nil {
		return "", missing
	}
	var prefix []string
	if os.Geteuid() != 0 {
		if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
			return "", missing
		}
		prefix = []string{"sudo", "-n"}
	}
	b.progress("installing Debian's package %s", pkg)
	if err := installPackage(ctx, prefix, pkg); err != nil {
		return "", fmt.Errorf("%w (%w)", missing, err)
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return "", missing
	}
	return path, nil
}

// servicePolicy is Debian's switch for services that packages start as they
// are installed. This program starts its own Redis, and wants no other.
const servicePolicy = "/usr/sbin/policy-rc.d"

func installPackage(ctx context.Context, prefix []string, pkg string) (err error) {
	do := func(ctx context.Context, command ...string) error {
		command = append(append([]string{}, prefix...), command...)
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = time.Minute
		if out, err := cmd.CombinedOutput(); err != nil {
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, lines[len(lines)-1])
		}
		return nil
	}
	if _, err := os.Stat(servicePolicy); errors.Is(err, fs.ErrNotExist) {
		if err := do(ctx, "sh", "-c", `printf '#!/bin/sh\nexit 101\n' >"$1" && chmod +x "$1"`, "sh", servicePolicy); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, do(context.WithoutCancel(ctx), "rm", "-f", servicePolicy)) }()
	}
	// An index of packages may be there already, and may be too old.
	apt := []string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qq", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", pkg}
	if do(ctx, apt...) == nil {
		return nil
	}
	if err := do(ctx, "apt-get", "update", "-qq"); err != nil {
		return err
	}
	return do(ctx, apt...)
}
