// Command bench measures Caddy and Traefik with and without limits, and the core without a proxy. `make
// bench` runs it. bench/README.md explains its rows and columns, and the rules that make its figures
// comparable.
//
// A row is a proxy with a limit under a load. Its base is the row that it is compared with, usually the same
// proxy without a limit. A bench measures a row and a fresh copy of its base, the control, in turns, so that
// both see the same machine. Each round of turns is a sample, and an estimate summarizes the samples. A peer
// is a limiter of another project.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster/leash"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// root is the folder of the repository. The program runs in the folder bench.
const root = ".."

// bench is a run of the benchmark: its options, its servers and its results.
type bench struct {
	ctx    context.Context // ends when the user interrupts the run
	rounds int
	slice  time.Duration // how long each of the ten turns of a row in a round is
	dir    string        // a temporary folder

	before    string // the commit of the version before, or ""
	beforeDir string // its files, or ""

	redisServer, traefik string            // programs; "" until a row needs them
	caddies              map[string]string // programs by name
	postgres             []*database       // for rows and for their controls
	proxies              []*proxy          // that run
	redis                *harness.Process  // nil until a row needs it
	redisAddress         string
	upstream             string // the URL of the server behind Traefik

	rows       []*row
	figures    [][]string // names and values of what is in no row
	complaints []string   // what makes figures doubtful
	began      time.Time
}

func newBench(ctx context.Context) *bench {
	return &bench{ctx: ctx, began: time.Now(), slice: 100 * time.Millisecond, caddies: map[string]string{}}
}

func main() {
	log.SetFlags(log.Ltime)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends this program at once
	b := newBench(ctx)
	flag.IntVar(&b.rounds, "rounds", 12, "how often each row is measured beside its control, 8 or more; "+
		"rows with wide intervals up to three times as often")
	only := flag.String("only", "",
		"measure only the rows with names that match this regular expression, in any case")
	all := flag.Bool("all", false, "measure the further rows, too")
	docs := flag.String("docs", "", "the folder where to write the table into performance.md and the "+
		"picture to benchmark.svg; by default nowhere")
	flag.StringVar(&b.before, "before", "",
		"a commit: compare the rows of pg_ratelimit with the rows of that version")
	flag.Parse()
	err := b.run("(?i)"+*only, *all, *docs)
	if b.ctx.Err() != nil {
		err = context.Cause(b.ctx) // err says only that a program was ended
	}
	if err != nil {
		log.Fatal("bench: ", err)
	}
}

// run measures everything that only matches, with all the further rows too, reports it, and
// writes it into the folder docs if that is not "".
func (b *bench) run(only string, all bool, docs string) (err error) {
	defer catch(&err)
	if b.rounds < fewest || flag.NArg() > 0 {
		return errors.New("takes flags only, and -rounds must be 8 or more")
	}
	if b.before != "" && docs != "" {
		return errors.New("-before takes no -docs")
	}
	wants := must(regexp.Compile(only)).MatchString
	b.rows = allRows()
	if b.before != "" {
		b.rows = besideBefore(b.rows)
	}
	b.rows = choose(b.rows, wants, all)
	if len(b.rows) == 0 {
		return fmt.Errorf("-only %s matches no row of bench/README.md; -all adds rows", only)
	}
	b.dir = must(os.MkdirTemp("", "pgrl-bench-"))
	guard := must(leash.New(syscall.SIGTERM, b.dir)) // removes the folder if this process is killed
	defer func() { err = errors.Join(err, b.stopServers(), os.RemoveAll(b.dir), guard.End()) }()
	if b.before != "" {
		b.beforeDir = b.checkOut(root, b.before)
	}
	b.postgres = append(b.postgres, startDatabase(b.ctx))
	b.postgres = append(b.postgres, startDatabase(b.ctx))

	b.rows = slices.DeleteFunc(b.rows, func(r *row) bool {
		failed := r.base != nil && !b.attempt(r.name, func() { b.measure(r) })
		if failed {
			r.control = nil // rows that are compared with it as with a peer have no ratio then
		}
		return failed
	})
	fmt.Print(b.results(os.Args[1:]))
	fmt.Printf("\nAll of it took %v.\n", time.Since(b.began).Round(time.Second))
	if docs != "" {
		check(b.writeDocs(docs, os.Args[1:]))
		fmt.Println("The tables and the picture are in", docs)
	}
	return nil
}

// complain adds a line to complaints, and prints it.
func (b *bench) complain(format string, args ...any) {
	b.complaints = append(b.complaints, fmt.Sprintf(format, args...))
	log.Print(b.complaints[len(b.complaints)-1])
}

// wrong reports requests without the expected answer.
func (b *bench) wrong(requests int, name string) {
	if requests > 0 {
		b.complain("%s: %d requests had a wrong answer, or none.", name, requests)
	}
}

// failure is the value with which check panics, to end the run.
type failure struct{ error }

// check ends the run unless err is nil: it panics, and catch returns the error. The benchmark cannot continue
// after a failure.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must returns v. It panics if err is not nil, see check.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// catch adds the error of a panic of check to err. Callers defer catch.
func catch(err *error) {
	if v := recover(); v != nil {
		f, ok := v.(failure)
		if !ok {
			panic(v)
		}
		*err = errors.Join(f.error, *err)
	}
}
