package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// programEnv is an environment variable. If it is set, the test binary acts as Caddy if its first argument is
// "run", and else as the demo.
const programEnv = "PG_RATELIMIT_DEMO_TEST_PROGRAM"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(programEnv) == "":
		os.Exit(m.Run())
	case os.Args[1] == "run":
		actAsCaddy()
	default:
		main()
	}
}

// actAsCaddy serves a response with its pid, its DSN, its arguments and the upstream's response.
func actAsCaddy() {
	signals := make(chan os.Signal, 10)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	l, err := net.Listen("tcp", ":"+os.Getenv("PORT"))
	if err != nil {
		panic(err)
	}
	go func() {
		panic(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			response, err := http.Get("http://" + os.Getenv("UPSTREAM") + r.URL.Path)
			if err != nil {
				panic(err)
			}
			defer response.Body.Close()
			hello, err := io.ReadAll(response.Body)
			if err != nil {
				panic(err)
			}
			fmt.Fprintf(w, "%d\n%s\n%s\n%s", os.Getpid(), os.Getenv("DATABASE_URL"),
				strings.Join(os.Args[1:], " "), hello)
		})))
	}()
	fmt.Println("signal:", <-signals)
}

// demo is a running demo, in its own process group.
type demo struct {
	*harness.Process
	port, state string
	output      string // until the demo was ready
}

// program returns the demo, with the test binary as its Caddy.
func program(t *testing.T, port, state, databaseURL string) harness.Program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return harness.Program{Path: self, Dir: ".",
		Args: []string{"-caddy", self, "-port", port, "-state", state},
		Env:  []string{programEnv + "=1", "DATABASE_URL=" + databaseURL}}
}

// start starts the demo, and waits until it prints that it is ready.
func start(t *testing.T, state, databaseURL string) *demo {
	t.Helper()
	d := &demo{port: strconv.Itoa(harness.FreePort(t)), state: state}
	d.Process = harness.Start(t, program(t, d.port, state, databaseURL))
	d.Await(t, "it to be ready", func() bool { return strings.HasSuffix(d.Log(), "\nCtrl-C ends it.\n") })
	d.output = d.Log()
	return d
}

// ask sends a request, and returns the four parts of the response of actAsCaddy.
func (d *demo) ask(t *testing.T, path string) (pid int, database, args, upstream string) {
	t.Helper()
	body := harness.Ask(t, harness.Get("http://127.0.0.1:"+d.port+path)).Body
	lines := strings.SplitN(body, "\n", 4)
	pid, err := strconv.Atoi(lines[0])
	if err != nil || len(lines) != 4 {
		t.Fatalf("the response is %q, want a pid and three texts", body)
	}
	return pid, lines[1], lines[2], lines[3]
}

// awaitGone waits until the processes have ended.
func awaitGone(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		await.Within(t, time.Minute, "the end of "+strconv.Itoa(pid), func() bool { return !runs(pid) })
	}
}

// runs reports whether a process exists and is not a zombie. Some containers never reap zombies.
func runs(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err != nil || !strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}

// cluster returns the folder of the demo's database.
func (d *demo) cluster(t *testing.T) string {
	t.Helper()
	elsewhere, err := os.ReadFile(filepath.Join(d.state, "postgres.elsewhere"))
	if err != nil {
		return filepath.Join(d.state, "postgres")
	}
	folder := strings.TrimSpace(string(elsewhere))
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return folder
}

// postmaster returns the pid of the server of the demo's database.
func (d *demo) postmaster(t *testing.T) int {
	t.Helper()
	return number(t, filepath.Join(d.cluster(t), "data", "postmaster.pid"))
}

// number returns the number in the first line of a file.
func number(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	n, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// end sends a signal to the demo, or to its group if pid is negative, and waits until it has ended.
func (d *demo) end(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := d.StopBy(func() error { return syscall.Kill(pid, s) }); err != nil {
		t.Error(err)
	}
	if after := strings.TrimPrefix(d.Log(), d.output); after != "" {
		t.Errorf("the demo prints %q after the signal, want nothing", after)
	}
}

// interrupt ends the demo as Ctrl-C does.
func (d *demo) interrupt(t *testing.T) {
	t.Helper()
	d.end(t, -d.PID(), syscall.SIGINT)
}

// The demo runs Caddy with the database of DATABASE_URL and an upstream. Each signal that users send, to the
// demo or to its whole process group, ends the demo and sends one SIGTERM to Caddy.
func TestEverySignalEndsEverything(t *testing.T) {
	dsn := cluster.Open(t)
	for s, receiver := range map[syscall.Signal]string{syscall.SIGINT: "its whole group",
		syscall.SIGTERM: "the demo alone", syscall.SIGHUP: "its whole group"} {
		t.Run(fmt.Sprintf("%v to %s", s, receiver), func(t *testing.T) {
			t.Parallel()
			d := start(t, t.TempDir(), dsn)
			pid, database, args, upstream := d.ask(t, "/some/path")
			if database != dsn {
				t.Errorf("Caddy's DATABASE_URL is %q, want %q", database, dsn)
			}
			if want := "run --config Caddyfile.example --adapter caddyfile"; args != want {
				t.Errorf("Caddy's arguments are %q, want %q", args, want)
			}
			if !strings.HasPrefix(upstream, "Hello from /some/path at ") {
				t.Errorf("the upstream responds %q, want Hello from /some/path", upstream)
			}
			target := d.PID()
			if receiver == "its whole group" {
				target = -target
			}
			d.end(t, target, s)
			awaitGone(t, pid)
			log, err := os.ReadFile(filepath.Join(d.state, "caddy.log"))
			if err != nil || string(log) != "signal: terminated\n" {
				t.Errorf("Caddy's log is %q, error %v, want one SIGTERM", log, err)
			}
		})
	}
}

// Without DATABASE_URL, the demo starts a private cluster, and uses the same one in the next run. The end of
// the demo stops the cluster. A second demo in the same folder fails while the first one runs.
func TestPrivateClusterIsKept(t *testing.T) {
	state := t.TempDir()
	var files []os.FileInfo
	databases := map[string]bool{}
	for range 2 {
		d := start(t, state, "")
		caddy, database, _, _ := d.ask(t, "/")
		databases[database] = true
		if !strings.HasPrefix(database, "postgres://postgres@127.0.0.1:") {
			t.Errorf("Caddy's DATABASE_URL is %q, want that of a private cluster", database)
		}
		server := d.postmaster(t)
		if err := ping(t.Context(), database); err != nil {
			t.Error(err)
		}

		second, err := harness.Launch(program(t, strconv.Itoa(harness.FreePort(t)), state, ""))
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(second.WaitFor("its end", func() bool { return false }), second.Stop())
		if text := fmt.Sprint(err); !strings.Contains(text, "exit status 1") ||
			!strings.Contains(text, "a server runs on") {
			t.Errorf("a second demo in the same folder: error %v, want one that a server runs", err)
		}

		d.interrupt(t)
		if runs(caddy) || runs(server) {
			t.Error("Caddy or Postgres runs after the end of the demo, want neither")
		}
		info, err := os.Stat(filepath.Join(d.cluster(t), "data", "PG_VERSION"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, info)
	}
	if !os.SameFile(files[0], files[1]) || len(databases) != 1 {
		t.Errorf("the second run has made another cluster, or one of %v, want the same one", databases)
	}
}

// The DSN that the demo prints has no password, in whatever form the DSN contains it.
func TestRedactHidesPassword(t *testing.T) {
	for dsn, want := range map[string]string{
		"postgres://u@h:1/db?sslmode=disable":        "postgres://u@h:1/db?sslmode=disable",
		"postgres://u:secret@h/db":                   "postgres://u:xxxxx@h/db",
		"postgres://h/db?password=secret&sslmode=no": "postgres://h/db?password=xxxxx&sslmode=no",
		"postgres://h/db?sslpassword=secret":         "postgres://h/db?sslpassword=xxxxx",
		"host=h password=secret":                     "of DATABASE_URL",
	} {
		if got := redact(dsn); got != want {
			t.Errorf("redact(%q) = %q, want %q", dsn, got, want)
		}
	}
}
