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

// testLateProcess: a statement has its result if the server responded in time, but the process was stopped
// until after the deadline.
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
