// Command demo is what `make run` runs: a Postgres, an upstream that says
// hello, and a Caddy in front of it that limits requests. It finds or makes
// what it needs, and leaves no process behind. It builds Caddy while Postgres
// is installed or started, since both may take minutes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	var o options
	flag.StringVar(&o.port, "port", "8080", "the port that Caddy listens on")
	flag.StringVar(&o.caddy, "caddy", "bin/caddy", "the Caddy to run, with pg_ratelimit built in")
	flag.StringVar(&o.config, "config", "Caddyfile.example", "its Caddyfile")
	flag.StringVar(&o.state, "state", ".run", "the folder for the database and logs; kept between runs")
	flag.StringVar(&o.list, "list", "", "the shell command that lists the packages of Caddy")
	flag.StringVar(&o.build, "build", "", "the shell command that builds Caddy; none: it is built")
	flag.BoolVar(&o.withParent, "with-parent", false, "end when the program that started this one is gone")
	flag.Parse()
	o.databaseURL = os.Getenv("DATABASE_URL")

	// The first signal ends everything in order. A second one ends this
	// program at once; the leashes of its children then end them.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)
	if o.withParent {
		ctx = untilParentEnds(ctx)
	}
	if err := run(ctx, o, os.Stdout); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "make run:", err)
		os.Exit(1)
	}
}

// options are what the command line and the environment say.
type options struct {
	port, caddy, config, state string
	list, build                string
	databaseURL                string
	withParent                 bool
}

// run starts all parts, waits until the context ends or a part does, and stops
// them: Caddy first, so that it never lacks its database.
func run(ctx context.Context, o options, out io.Writer) (err error) {
	if err := checkPort(o.port); err != nil {
		return err
	}
	state, err := filepath.Abs(o.state)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(state, 0o755); err != nil {
		return err
	}
	o.state = state

	dsn, stopDatabase, err := prepare(ctx, o, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopDatabase()) }()

	keys, policyErr := makePolicy(ctx, dsn, o.databaseURL != "")
	if ctx.Err() != nil {
		return ctx.Err()
	}

	upstream, stopUpstream, err := startUpstream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopUpstream()) }()

	c, err := startCaddy(o, dsn, upstream)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := c.awaitAnswer(ctx); err != nil {
		return err
	}

	fmt.Fprintf(out, welcome, o.port, shown(dsn), o.config, relative(c.log))
	database := "" // a shell with DATABASE_URL has started this program
	if o.databaseURL == "" {
		database = "DATABASE_URL='" + dsn + "' "
	}
	if policyErr != nil {
		fmt.Fprintf(out, "\nWithout a policy to try: %s\n", oneLine(policyErr))
	} else {
		fmt.Fprintf(out, policyWelcome, o.port, keys.ann, keys.acme, database, o.caddy)
	}
	fmt.Fprintf(out, historyWelcome, database, o.caddy)
	fmt.Fprint(out, farewell)
	select {
	case <-ctx.Done():
		return nil
	case <-c.exited:
		return c.gone()
	}
}

// prepare starts the database, and builds Caddy at the same time. If one of
// them fails, it ends the other one.
func prepare(ctx context.Context, o options, out io.Writer) (dsn string, stop func() error, err error) {
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	built := make(chan error, 1)
	go func() {
		if _, err := os.Stat(o.caddy); err != nil && o.build != "" {
			fmt.Fprintln(out, "Caddy: building it. The first time, this takes some minutes ...")
		}
		err := builder{list: o.list, build: o.build, tell: out, tick: tellEvery}.run(both)
		if err != nil {
			cancel()
		}
		built <- err
	}()
	dsn, stop, err = startDatabase(both, o, out)
	if err != nil {
		cancel()
	}
	buildErr := <-built
	switch {
	case err == nil && buildErr == nil:
		return dsn, stop, nil
	case err == nil:
		return "", nil, errors.Join(buildErr, stop())
	case ctx.Err() == nil && errors.Is(err, context.Canceled):
		return "", nil, buildErr
	}
	return "", nil, err
}

const welcome = `
Caddy with pg_ratelimit answers on http://localhost:%[1]s

  database  %[2]s
  config    %[3]s
  log       %[4]s
  metrics   http://localhost:%[1]s/metrics
  page      http://localhost:%[1]s/limits/

Try it, more often than the limit allows:

  curl -i http://localhost:%[1]s/
  for i in $(seq 12); do curl -s -o /dev/null -w '%%{http_code} ' http://localhost:%[1]s/; done; echo
`

// historyWelcome shows the history, with how a command finds the database.
const historyWelcome = `
List what happened to these requests, and the keys with the most requests:

  %[1]s%[2]s pg-ratelimit audit
  %[1]s%[2]s pg-ratelimit top --since 1h
`

const farewell = `
Ctrl-C ends it.
`

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
