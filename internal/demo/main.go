// Command demo is the program of `make run`. It starts a Postgres, an upstream that responds with a greeting
// or as a language model, and a Caddy in front of the upstream that limits requests. It downloads or builds
// missing programs, and leaves no process running.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.port, "port", "8080", "the port that Caddy listens on")
	flag.StringVar(&o.caddy, "caddy", "bin/caddy", "the Caddy to run, with pg_ratelimit built in")
	flag.StringVar(&o.config, "config", "Caddyfile.example", "the Caddyfile")
	flag.StringVar(&o.state, "state", ".run", "the folder for the database and logs; kept between runs")
	flag.StringVar(&o.build, "build", "", "the shell command that builds Caddy; none if it is built")
	flag.Parse()
	o.databaseURL = os.Getenv("DATABASE_URL")

	// The first signal ends everything in order. A second one ends this
	// program immediately; the leashes of its children then end them.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)
	if err := run(ctx, o, os.Stdout); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "make run:", err)
		os.Exit(1)
	}
}

// options holds the flags and the environment.
type options struct {
	port, caddy, config, state, build string
	databaseURL                       string
}

// run starts all servers, waits until the context or Caddy ends, and stops the servers. It stops Caddy first,
// so that Caddy never runs without its database.
func run(ctx context.Context, o options, out io.Writer) (err error) {
	if err := checkPort(o.port); err != nil {
		return err
	}
	if o.state, err = filepath.Abs(o.state); err != nil {
		return err
	}
	if err := os.MkdirAll(o.state, 0o755); err != nil {
		return err
	}
	dsn, stopDatabase, err := startDatabase(ctx, o, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopDatabase()) }()
	if err := build(ctx, o, out); err != nil {
		return err
	}
	keys, policyErr := makePolicy(ctx, dsn, o.state, o.databaseURL != "")
	if ctx.Err() != nil {
		return ctx.Err()
	}
	upstream, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(upstream) }() // until Close
	defer server.Close()
	c, err := startCaddy(o, dsn, upstream.Addr().String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := c.awaitListening(ctx); err != nil {
		return err
	}

	kept := "its data stay between runs"
	if o.databaseURL == "" {
		kept += "; make clean deletes them"
	}
	fmt.Fprintf(out, welcome, o.port, redact(dsn), kept, o.config, filepath.Join(o.state, "caddy.log"))
	database := "" // a shell with DATABASE_URL has started this program
	if o.databaseURL == "" {
		database = "DATABASE_URL='" + dsn + "' "
	}
	if policyErr != nil {
		fmt.Fprintf(out, "\nWithout a policy to try: %s\n", oneLine(policyErr))
	} else {
		fmt.Fprintf(out, policyWelcome, o.port, keys["ann"], keys["acme"], database, o.caddy)
	}
	fmt.Fprintf(out, historyWelcome, database, o.caddy)
	select {
	case <-ctx.Done():
		return nil
	case <-c.exited:
		return fmt.Errorf("caddy ended by itself (%v): %s", c.cmd.ProcessState, c.tail())
	}
}

// handler returns the upstream behind Caddy.
func handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", hello)
	mux.HandleFunc("POST /v1/chat/completions", chat)
	return mux
}

// hello responds with a greeting.
func hello(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "Hello from %s at %s.\n", r.URL.Path, time.Now().Format(time.TimeOnly))
}

// chat responds as a language model with OpenAI's API does, always with the same text and usage.
func chat(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Model  json.RawMessage
		Stream bool
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil || request.Model == nil {
		http.Error(w, "The body must be JSON with a model.", http.StatusBadRequest)
		return
	}
	contentType, object, message, format := "application/json", "chat.completion", "message", "%s\n"
	if request.Stream {
		contentType, object, message = "text/event-stream", "chat.completion.chunk", "delta"
		format = "data: %s\n\ndata: [DONE]\n\n"
	}
	w.Header().Set("Content-Type", contentType)
	fmt.Fprintf(w, format, fmt.Sprintf(answer, object, time.Now().Unix(), request.Model, message))
}

const answer = `{"id":"demo","object":%q,"created":%d,"model":%s,"choices":[{"index":0,` +
	`%q:{"role":"assistant","content":"Hello from a stub of a model."},"finish_reason":"stop"}],` +
	`"usage":{"prompt_tokens":100,"completion_tokens":50,"total_tokens":150}}`

const welcome = `
Caddy with pg_ratelimit answers on http://localhost:%[1]s

  database  %[2]s
            (%[3]s)
  config    %[4]s
  log       %[5]s
  metrics   http://localhost:%[1]s/metrics
  page      http://localhost:%[1]s/limits/

Try it, more often than the limit allows:

  curl -i http://localhost:%[1]s/
  for i in $(seq 12); do curl -s -o /dev/null -w '%%{http_code} ' http://localhost:%[1]s/; done; echo
`

// historyWelcome explains the history. %[1]s sets the database for a command, and %[2]s is the path of Caddy.
const historyWelcome = `
List what happened to these requests, and the keys with the most requests:

  %[1]s%[2]s pg-ratelimit audit
  %[1]s%[2]s pg-ratelimit top --since 1h

Ctrl-C ends it.
`
