package cluster

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// asProgram is the variable that makes this test binary be a program that
// uses the shared cluster and then ends in the way that the variable names.
const asProgram = "PG_RATELIMIT_CLUSTER_TEST_PROGRAM"

func TestMain(m *testing.M) {
	way := os.Getenv(asProgram)
	if way == "" {
		os.Exit(m.Run())
	}
	if folder, found := strings.CutPrefix(way, "install in "); found {
		d := debian{folder: folder, conf: filepath.Join(folder, "createcluster.conf")}
		_, err := d.install(context.Background())
		panic(err) // the test kills it before
	}
	c, err := shared()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(c.run.pid(), c.Dir(), c.SocketDir())
	switch way {
	case "return":
	case "panic":
		panic("as the test asked")
	case "pause":
		if err := c.Pause(); err != nil {
			panic(err)
		}
		fmt.Println("paused")
	}
	if way != "return" {
		select {} // until SIGKILL
	}
}

func TestTheSharedClusterGoesWithItsProcess(t *testing.T) {
	for _, way := range []string{"return", "panic", "kill", "pause"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			program := exec.Command(self)
			program.Env = append(os.Environ(), asProgram+"="+way)
			stdout, err := program.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			out := bufio.NewReader(stdout)
			var pid int
			var dir, sockets string
			if _, err := fmt.Fscanln(out, &pid, &dir, &sockets); err != nil {
				t.Fatal(err)
			}
			children, err := descendants(pid)
			if err != nil {
				t.Fatal(err)
			}
			if way == "pause" {
				if said, err := out.ReadString('\n'); err != nil || said != "paused\n" {
					t.Fatalf("the program says %q, %v", said, err)
				}
			}
			if way == "kill" || way == "pause" {
				if err := program.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			if err := program.Wait(); (err == nil) != (way == "return") {
				t.Fatalf("the program ended with %v", err)
			}
			if err := awaitGone(patience, append(children, pid)); err != nil {
				t.Error(err)
			}
			if err := poll(patience, "the folders to go", func(map[int]process) bool { return !exists(dir) && !exists(sockets) }); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOpenGivesEachTestItsDatabase(t *testing.T) {
	var mu sync.Mutex
	names := make(map[string]bool)
	t.Run("at once", func(t *testing.T) {
		for i := range 8 {
			t.Run(fmt.Sprintf("Name with spaces, ünïcode & more %d", i), func(t *testing.T) {
				t.Parallel()
				conn := Connect(t, Open(t))
				if n := queryText(t, conn, "SELECT count(*)::text FROM pg_tables WHERE schemaname = 'public'"); n != "0" {
					t.Errorf("a fresh database has %s tables, want 0", n)
				}
				mustExec(t, conn, "CREATE TABLE mine ()")
				mu.Lock()
				defer mu.Unlock()
				names[queryText(t, conn, "SELECT current_database()::text")] = true
			})
		}
	})
	if len(names) != 8 {
		t.Errorf("8 tests had %d databases, want 8", len(names))
	}
	c, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	conn := Connect(t, c.DSN("postgres"))
	for name := range names {
		if n := queryText(t, conn, "SELECT count(*)::text FROM pg_database WHERE datname = '"+name+"'"); n != "0" {
			t.Errorf("%s is there after its test", name)
		}
	}
}

func TestOpenDropsADatabaseInUse(t *testing.T) {
	var dsn string
	var conn *pgx.Conn
	t.Run("left open", func(t *testing.T) {
		dsn = Open(t)
		var err error
		if conn, err = pgx.Connect(context.Background(), dsn); err != nil {
			t.Fatal(err)
		}
	})
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a connection to a dropped database answers")
	}
	if _, err := pgx.Connect(t.Context(), dsn); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("connecting to a dropped database: %v, want that it does not exist", err)
	}
}

func TestOpenUsesTheServerThatIsNamed(t *testing.T) {
	c := Private(t, Options{Config: map[string]string{"cluster_name": "the named one"}})
	t.Setenv(TestDSN, c.DSN("postgres")+"&application_name=kept")
	conn := Connect(t, Open(t))
	if got := queryText(t, conn, "SELECT current_setting('cluster_name') || ', ' || current_setting('application_name')"); got != "the named one, kept" {
		t.Errorf("the database is on %q, want the server that %s names, with the address's options", got, TestDSN)
	}
}

func TestWithDatabase(t *testing.T) {
	for dsn, want := range map[string]string{
		"postgres://u:p@h:1/old?sslmode=disable": "postgres://u:p@h:1/new?sslmode=disable",
		"postgresql://h":                         "postgresql://h/new",
		"host=h dbname=old":                      "",
		"mysql://h/old":                          "",
		"postgres://%zz":                         "",
	} {
		got, err := withDatabase(dsn, "new")
		if got != want || (err == nil) != (want != "") {
			t.Errorf("withDatabase(%q): %q, %v, want %q", dsn, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), dsn) {
			t.Errorf("the error repeats the address, which may hold a password: %v", err)
		}
	}
}
