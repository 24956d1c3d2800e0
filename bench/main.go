// Command bench measures Caddy and Traefik with and without limits, and the core
// without a proxy. `make bench` runs it. bench/README.md explains its rows and
// columns, and the rules that make its figures comparable.
//
// The files, in the order of a run: main.go prepares it. rows.go lists what is
// measured. proxies.go, caddy.go, traefik.go, redis.go and database.go start servers.
// rounds.go, wrk.go and cpu.go measure the rows, and core.go those of the core.
// latency.go, memory.go, policy.go and pages.go measure what takes another load.
// stats.go, report.go, docs.go, picture.go and machine.go print results.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster/leash"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// root is the repository's folder. The program runs in the folder bench.
const root = ".."

// bench is a run: its options, its servers and its results.
type bench struct {
	ctx     context.Context // ends when the user interrupts the run
	rounds  int
	seconds int            // for which each round measures a row
	only    *regexp.Regexp // what to measure; matches everything by default
	dir     string         // a temporary folder

	before string // a checkout of the version before, or ""

	wrk, redisServer, traefik string            // programs; "" until a row needs them
	caddies                   map[string]string // programs by name
	postgres                  *database
	proxies                   map[*proxySpec]*proxy // that run
	redis                     *harness.Process      // nil until a row needs it
	redisAddress              string
	upstream                  string // the URL of the server behind Traefik
	script                    string // of wrk

	proxyRows  []*row
	coreRows   []*row
	figures    [][]string // names and values of what is no row
	complaints []string   // what makes figures doubtful
	began      time.Time
}

func main() {
	log.SetFlags(log.Ltime)
	b := &bench{began: time.Now(), proxies: map[*proxySpec]*proxy{}, caddies: map[string]string{}}
	flag.IntVar(&b.rounds, "rounds", 5, "how often each row is measured")
	flag.IntVar(&b.seconds, "seconds", 2, "how long each time, after a second of warming up")
	only := flag.String("only", "", "measure only the rows with names that match this regular expression, in any case")
	docs := flag.String("docs", "", "the folder where to write the table into performance.md and the picture to benchmark.svg; by default nowhere")
	flag.StringVar(&b.before, "before", "", "a checkout of another version: measure each row of pg_ratelimit with that version, too")
	flag.Parse()
	var stop func()
	b.ctx, stop = signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(b.ctx, stop) // a second signal ends this program at once
	err := b.run("(?i)"+*only, *docs)
	if b.ctx.Err() != nil {
		err = context.Cause(b.ctx) // err says only that a program was ended
	}
	if err != nil {
		log.Fatal("bench: ", err)
	}
}

// run measures everything that only matches, reports it, and writes it into the folder docs if
// that is not "".
func (b *bench) run(only, docs string) (err error) {
	defer catch(&err)
	if b.rounds < 1 || b.seconds < 1 || flag.NArg() > 0 {
		return errors.New("takes flags only; -rounds and -seconds must be 1 or more")
	}
	b.only = must(regexp.Compile(only))
	unwanted := func(r *row) bool { return !b.wants(r.name) }
	b.proxyRows, b.coreRows = slices.DeleteFunc(proxyRows(), unwanted), slices.DeleteFunc(coreRows(), unwanted)
	if b.before != "" {
		must(os.Stat(filepath.Join(b.before, "xcaddy", "go.mod")))
		b.proxyRows = withBefore(b.proxyRows)
	}
	if len(b.proxyRows)+len(b.coreRows) == 0 && !slices.ContainsFunc(figureNames, b.wants) {
		return fmt.Errorf("-only %s matches no row of bench/README.md", only)
	}
	b.dir = must(os.MkdirTemp("", "pgrl-bench-"))
	guard := must(leash.New(syscall.SIGTERM, b.dir)) // removes the folder if this process is killed
	defer func() { err = errors.Join(err, b.stopProxies(), os.RemoveAll(b.dir), guard.End()) }()
	b.postgres = startDatabase(b.ctx)
	defer func() { err = errors.Join(err, b.postgres.stop()) }()

	b.measureProxies()
	b.attempt("core", b.measureCore)
	fmt.Println(b.describeMachine())
	b.report(os.Stdout)
	if docs != "" {
		check(b.writeDocs(docs, os.Args[1:]))
		fmt.Println("\nThe table and the picture are in", docs)
	}
	return nil
}

// wants tells whether to measure the row or the figure of this name.
func (b *bench) wants(name string) bool { return b.only.MatchString(name) }

// figure adds a figure to the report.
func (b *bench) figure(name, format string, args ...any) {
	b.figures = append(b.figures, []string{name, fmt.Sprintf(format, args...)})
}

// complain adds a line about what makes figures doubtful.
func (b *bench) complain(format string, args ...any) {
	b.complaints = append(b.complaints, fmt.Sprintf(format, args...))
	log.Print(b.complaints[len(b.complaints)-1])
}

// wrong reports requests that did not get the answer that they should have.
func (b *bench) wrong(requests int, name string) {
	if requests > 0 {
		b.complain("%s: %d requests had a wrong answer, or none.", name, requests)
	}
}

// failure is an error that ends the run.
type failure struct{ error }

// check ends the run if there is an error: it panics, and catch returns the error.
// No part of the benchmark can go on after a failure.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must returns v, if there is no error.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// catch is to be deferred. It adds the error that check has panicked with to err.
func catch(err *error) {
	if v := recover(); v != nil {
		f, ok := v.(failure)
		if !ok {
			panic(v)
		}
		*err = errors.Join(f.error, *err)
	}
}
