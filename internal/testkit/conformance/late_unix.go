//go:build unix

package conformance

import (
	"bufio"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// lateEnv has the DSN for the process that testLateProcess starts.
const lateEnv = "PGRATELIMIT_TEST_LATE_DSN"

// testLateProcess stops a process while its statement is under way, for longer than the statement has. The server has
// answered in time, so that the statement has its result.
func testLateProcess(t *testing.T, open openDB) {
	const limit = time.Second
	if dsn := os.Getenv(lateEnv); dsn != "" {
		d := &db{t: t, DB: open(t, dsn)}
		defer d.Close()
		d.run(statement("SELECT 1"))
		for range 2 {
			_, _ = os.Stdout.WriteString("asking\n")
			s := statement("SELECT pg_sleep(0.1)")
			if err := d.tryFor(limit, s); err != nil || s.Err != nil {
				t.Errorf("an answer that was read late: %v, %v", err, s.Err)
			}
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
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		text.WriteString(lines.Text() + "\n")
		if lines.Text() != "asking" {
			continue
		}
		time.Sleep(50 * time.Millisecond) // the statement may have been sent or not
		_ = child.Process.Signal(syscall.SIGSTOP)
		time.Sleep(2 * limit)
		_ = child.Process.Signal(syscall.SIGCONT)
	}
	if err := child.Wait(); err != nil {
		t.Errorf("%v\n%s", err, text.String())
	}
}
