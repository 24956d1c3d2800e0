package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster/leash"
)

// bench is a run with what it has built and started.
type bench struct {
	options
	root  string // of the repository
	self  string // this program
	dir   string // a temporary folder
	leash *leash.Leash

	wrk, redisServer string // programs; "" if no row needs them
	caddy, traefik   string

	rows            []*row
	core            []*coreRow
	postgres        *database
	redis           *program
	redisAddress    string
	upstream        *program // of the Traefiks
	upstreamAddress string
	proxies         map[string]*proxy // by the spec's name
}

// results are what a run has measured.
type results struct {
	rows        []*row
	core        []*coreRow
	pace        *paceResult
	allocations *spread
	memory      *memoryResult
	machine     []string
	complaints  []string // of the proxies, about the database
	took        time.Duration
}

// modulePath is the repository's module.
const modulePath = "github.com/pgratelimit/pg-ratelimit"

// prepare builds and starts what all rows have in common.
func prepare(ctx context.Context, o options) (_ *bench, err error) {
	b := &bench{options: o, proxies: map[string]*proxy{}}
	for _, r := range allRows() {
		if o.wants(r.name) {
			b.rows = append(b.rows, r)
		}
	}
	for _, r := range allCoreRows() {
		if o.wants(r.name) {
			b.core = append(b.core, r)
		}
	}
	if len(b.rows)+len(b.core) == 0 && !o.wants(namePace) && !o.wants(nameAllocations) && !o.wants(nameMemory) {
		return nil, fmt.Errorf("-only %s finds nothing; the rows are:\n%s", o.only, strings.Join(allNames(), "\n"))
	}
	if b.root, err = repositoryRoot(ctx); err != nil {
		return nil, err
	}
	if b.svg == "" && o.only == nil {
		b.svg = filepath.Join(b.root, defaultSVG)
	}
	if b.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if b.dir, err = os.MkdirTemp("", "pgrl-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.leash, err = leash.New(syscall.SIGTERM, b.dir); err != nil {
		return nil, err
	}
	if err := b.install(ctx); err != nil {
		return nil, err
	}
	if err := b.build(ctx); err != nil {
		return nil, err
	}
	b.progress("starting Postgres")
	if b.postgres, err = startDatabase(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

// close stops what was started and removes the temporary folder.
func (b *bench) close() error {
	errs := []error{b.stopProxies()}
	if b.postgres != nil {
		errs = append(errs, b.postgres.stop())
	}
	if b.dir != "" {
		errs = append(errs, os.RemoveAll(b.dir))
	}
	if b.leash != nil {
		errs = append(errs, b.leash.End())
	}
	return errors.Join(errs...)
}

// progress says on stderr what is going on.
func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// repositoryRoot is the folder of the module that this one tests.
func repositoryRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", modulePath).Output()
	if err != nil {
		return "", fmt.Errorf("go list -m %s, in the folder integration: %w", modulePath, explainExit(err))
	}
	return strings.TrimSpace(string(out)), nil
}

// explainExit adds what a program has said to the error that it ended with.
func explainExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}

// relative is a path as a person in the current folder would write it.
func relative(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}
	short, err := filepath.Rel(here, path)
	if err != nil || len(short) > len(path) {
		return path
	}
	return short
}
