// Command bench is what `make bench` runs: it measures Caddy and Traefik with
// and without limits, and the core alone, all on this machine in one run. It
// builds or installs what it needs, talks to loopback addresses only, and
// leaves no process behind.
//
// Each row is measured once a round, the rows in turn, so that whatever else
// the machine does meets all of them alike. What is printed is the median of the
// rounds, with the lowest and the highest. docs/performance.md explains the
// rows and the columns.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

func main() {
	// The program runs itself for what needs a process of its own.
	if len(os.Args) > 1 {
		if child := children[os.Args[1]]; child != nil {
			if err := child(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, os.Args[1]+":", err)
				os.Exit(1)
			}
			return
		}
	}
	o, err := readOptions()
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		// A second signal ends this program at once; leashes end its children.
		context.AfterFunc(ctx, stop)
		err = run(whileParentLives(ctx), o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// children are the parts that run as processes of their own, by the argument
// that asks for one.
var children = map[string]func(args []string) error{
	steadyChild:   steadyMain,
	coreChild:     coreMain,
	upstreamChild: upstreamMain,
}

// options are what the command line says.
type options struct {
	rounds     int
	seconds    int
	only       *regexp.Regexp // nil is all
	svg        string         // "" draws none
	noUpstream bool           // Traefik answers by itself
}

// defaultSVG is where the picture belongs, from the repository's root.
const defaultSVG = "docs/benchmark.svg"

func readOptions() (options, error) {
	var o options
	var only string
	flag.IntVar(&o.rounds, "rounds", 5, "how often each row is measured")
	flag.IntVar(&o.seconds, "seconds", 2, "how long each time, after a second of warming up")
	flag.StringVar(&only, "only", "", "measure only what this regular expression finds in the name of, whatever its case")
	flag.StringVar(&o.svg, "svg", "", "where to draw the picture (default "+defaultSVG+" if all is measured, else nowhere)")
	flag.BoolVar(&o.noUpstream, "no-upstream", false, "let Traefik answer by itself, with ping@internal, rather than an upstream")
	flag.Parse()
	if flag.NArg() > 0 {
		return o, fmt.Errorf("%q: takes flags only", flag.Arg(0))
	}
	if o.rounds < 1 || o.rounds > 100 {
		return o, fmt.Errorf("-rounds is %d, must be from 1 to 100", o.rounds)
	}
	if o.seconds < 1 || o.seconds > 60 {
		return o, fmt.Errorf("-seconds is %d, must be from 1 to 60", o.seconds)
	}
	if only != "" {
		var err error
		if o.only, err = regexp.Compile("(?i)" + only); err != nil {
			return o, fmt.Errorf("-only: %w", err)
		}
	}
	return o, nil
}

// wants tells whether what has this name is to be measured.
func (o options) wants(name string) bool { return o.only == nil || o.only.MatchString(name) }

// whileParentLives is a context that ends also when the program that started
// this one is gone: `go run` passes on no signal that was sent to it alone.
func whileParentLives(ctx context.Context) context.Context {
	parent := os.Getppid()
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for os.Getppid() == parent {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		cancel(errors.New("the program that started this one is gone"))
	}()
	return ctx
}

// Names of what is measured besides rows, for -only.
const (
	namePace        = "p99 at half of the plain throughput"
	nameAllocations = "allocations"
	nameMemory      = "memory"
)

// run measures everything and reports it.
func run(ctx context.Context, o options) (err error) {
	began := time.Now()
	b, err := prepare(ctx, o)
	if err != nil {
		return orCause(ctx, err)
	}
	defer func() { err = orCause(ctx, errors.Join(err, b.close())) }()

	r := &results{}
	if err := b.measureProxies(ctx, r); err != nil {
		return err
	}
	if err := b.measureCore(ctx, r); err != nil {
		return err
	}
	r.machine = b.describeMachine(ctx)
	r.took = time.Since(began)
	b.report(r)
	if b.svg == "" {
		return nil
	}
	if err := os.WriteFile(b.svg, []byte(picture(r)), 0o644); err != nil {
		return err
	}
	fmt.Println("\nThe picture is in", relative(b.svg))
	return nil
}

// orCause is what ended a run: a program that ctx has killed says only that it
// was killed.
func orCause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
