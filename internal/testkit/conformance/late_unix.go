//go:build unix

package conformance

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// lateEnv is the environment variable with the DSN for the process that testLateProcess starts.
const lateEnv = "PGRATELIMIT_TEST_LATE_DSN"

// testLateProcess checks that a statement has its result if the server responded in time, but the process was
// stopped until after the deadline.
func testLateProcess(t *testing.T, open openDB) {
	const limit = 5 * time.Second
	if dsn := os.Getenv(lateEnv); dsn != "" {
		d := open.connect(t, dsn)
		d.ping()
		for round := range 2 {
			_, _ = os.Stdout.WriteString("running\n")
			s := statement(fmt.Sprintf("SELECT pg_sleep(0.5) /* %d */", round))
			if err := d.tryFor(limit, s); err != nil || s.Err != nil {
				t.Errorf("a response that was read late: %v, %v; want no errors", err, s.Err)
			}
			_, _ = os.Stdin.Read(make([]byte, 1)) // blocks while the parent stops this process
		}
		return
	}
	c := cluster.Private(t, cluster.Options{})
	var levels []string
	for level := range strings.SplitSeq(t.Name(), "/") {
		levels = append(levels, "^"+regexp.QuoteMeta(level)+"$")
	}
	child := exec.Command(os.Args[0], "-test.run", strings.Join(levels, "/"))
	child.Env = append(os.Environ(), lateEnv+"="+c.DSN("postgres"))
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := child.StdinPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	round := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		text.WriteString(lines.Text() + "\n")
		if lines.Text() != "running" {
			continue
		}
		sent := fmt.Sprintf("SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE '%%/* %d */'", round)
		await.Within(t, timeout, "the statement is sent",
			func() bool { return cluster.Query[bool](t, c.DSN("postgres"), sent) })
		_ = child.Process.Signal(syscall.SIGSTOP)
		time.Sleep(limit + time.Second)
		_ = child.Process.Signal(syscall.SIGCONT)
		_, _ = in.Write([]byte("\n"))
		round++
	}
	if err := child.Wait(); err != nil {
		t.Errorf("the stopped process: error %v, want none\n%s", err, text.String())
	}
}

// testSessionsHang checks that sessions that calls have given up, and the server has not ended, count as
// connections.
func testSessionsHang(t *testing.T, open openDB) {
	c := cluster.Private(t, cluster.Options{})
	d := open.connect(t, WithSettings(t, c.DSN("postgres"), "pool_max_conns", "2"))
	d.openSeveral()
	const sessions = " FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> " +
		"pg_backend_pid()"
	signal := func(s syscall.Signal) {
		for _, pid := range cluster.Query[[]int](t, c.DSN("postgres"), "SELECT array_agg(pid)"+sessions) {
			_ = syscall.Kill(pid, s)
		}
	}
	signal(syscall.SIGSTOP)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		if d.tryFor(100*time.Millisecond, statement("SELECT 1")) == nil {
			t.Error("a call has an answer, want none from stopped sessions")
			break
		}
	}
	if n := cluster.Query[int](t, c.DSN("postgres"), "SELECT count(*)::int"+sessions); n != 2 {
		t.Errorf("the server has %d sessions, want 2", n)
	}
	signal(syscall.SIGCONT)
	d.requireRecovery()
}
