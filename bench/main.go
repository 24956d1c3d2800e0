// Command bench measures Caddy and Traefik with and without limits, and the core without a proxy. `make
// bench` runs it. bench/README.md explains its rows and columns, and the rules that make its figures
// comparable.
//
// The words of this program:
//   - A row is a proxy with a limit under a load.
//   - The base of a row is the row that it is compared with, usually the same proxy without a limit.
//   - The control of a row is a fresh copy of its base. A row and its control get load in turns, so that
//     other work on the machine affects both alike.
//   - A sample is the measurement of a row or a control in one round of turns.
//   - An estimate summarizes the samples of all rounds.
//   - A peer is a limiter of another project.
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
	turn   time.Duration // duration of one turn
	dir    string        // temporary folder

	baseCommit string // commit of the base version, or ""
	baseDir    string // folder with the files of the base version, or ""

	redisServer, traefik string            // paths of programs; "" until a row needs them
	caddies              map[string]string // programs by name
	postgres             []*database       // for rows and for their controls
	proxies              []*proxy          // running proxies
	redis                *harness.Process  // nil until a row needs it
	redisAddress         string
	upstream             string // URL of the server behind the proxies, in this process; "" before the first

	rows       []*row
	figures    [][]string // figures outside the table: name, value
	complaints []string   // reasons to doubt figures
	start      time.Time
}

func newBench(ctx context.Context) *bench {
	return &bench{ctx: ctx, start: time.Now(), turn: 100 * time.Millisecond, caddies: map[string]string{}}
}

func main() {
	log.SetFlags(log.Ltime)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends this program immediately
	b := newBench(ctx)
	flag.IntVar(&b.rounds, "rounds", 12, "rounds per row, 8 or more; "+
		"rows with wide intervals get up to three times as many")
	only := flag.String("only", "",
		"measure only the rows with names that match this regular expression, in any case")
	withMore := flag.Bool("all", false, "also measure the further rows")
	docs := flag.String("docs", "", "the folder with performance.md and benchmark.svg, to update "+
		"the tables and the picture; by default none")
	flag.StringVar(&b.baseCommit, "before", "",
		"a commit: compare the rows of pg_ratelimit with the rows of that version")
	flag.Parse()
	err := b.run("(?i)"+*only, *withMore, *docs)
	if b.ctx.Err() != nil {
		err = context.Cause(b.ctx) // names the signal; err names only a program that the signal has ended
	}
	if err != nil {
		log.Fatal("bench: ", err)
	}
}

// run measures the rows with names that match the regular expression pattern, and prints the results. If
// withMore is set, run also measures the further rows that match. Unless docs is "", run also writes the
// results into that folder.
func (b *bench) run(pattern string, withMore bool, docs string) (err error) {
	defer catch(&err)
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: give flags only", flag.Arg(0))
	}
	if b.rounds < minRounds {
		return fmt.Errorf("-rounds %d: must be %d or more", b.rounds, minRounds)
	}
	if b.baseCommit != "" && docs != "" {
		return errors.New("-before and -docs exclude each other")
	}
	matches := must(regexp.Compile(pattern)).MatchString
	b.rows = allRows()
	if b.baseCommit != "" {
		b.rows = besideBefore(b.rows)
	}
	b.rows = choose(b.rows, matches, withMore)
	if len(b.rows) == 0 {
		return fmt.Errorf("-only %s matches no row of bench/README.md; -all adds rows", pattern)
	}
	b.dir = must(os.MkdirTemp("", "pgrl-bench-"))
	guard := must(leash.New(syscall.SIGTERM, b.dir)) // removes the folder if this process is killed
	defer func() { err = errors.Join(err, b.stopServers(), os.RemoveAll(b.dir), guard.End()) }()
	if b.baseCommit != "" {
		b.baseDir = b.checkOut(root, b.baseCommit)
	}
	b.postgres = append(b.postgres, startDatabase(b.ctx))
	b.postgres = append(b.postgres, startDatabase(b.ctx))

	b.rows = slices.DeleteFunc(b.rows, func(r *row) bool {
		failed := r.base != nil && !b.attempt(r.name, func() { b.measure(r) })
		if failed {
			r.control = nil // without a control, ratio returns no value for r, nor for rows compared with r
		}
		return failed
	})
	fmt.Print(b.results(os.Args[1:]))
	fmt.Printf("\nThe run took %v.\n", time.Since(b.start).Round(time.Second))
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

// reportWrong reports requests without the expected response.
func (b *bench) reportWrong(requests int, name string) {
	if requests > 0 {
		b.complain("%s: %d requests had a wrong response, or none.", name, requests)
	}
}

// failure is the value of check's panics, which end the run.
type failure struct{ error }

// check ends the run unless err is nil: it panics, and catch returns the error. The benchmark cannot continue
// after a failure.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must returns v. It panics if err is not nil, as check does.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// catch recovers a panic of check, and joins its error to *err. Use it with defer.
func catch(err *error) {
	if v := recover(); v != nil {
		f, ok := v.(failure)
		if !ok {
			panic(v)
		}
		*err = errors.Join(f.error, *err)
	}
}
