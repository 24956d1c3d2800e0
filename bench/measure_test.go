package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// helperMode is the environment variable that makes this test program a helper: a server whose
// requests take a known processor time or sleep, or a process that takes some and waits.
const helperMode = "BENCH_TEST_HELPER"

func TestMain(m *testing.M) {
	switch mode := os.Getenv(helperMode); mode {
	case "":
		os.Exit(m.Run())
	case "parent":
		becomeParent()
	case "burn":
		burn(burnt)
		fmt.Println("done")
		_, _ = io.Copy(io.Discard, os.Stdin)
	default:
		serve(mode, os.Getenv("ADDRESS"))
	}
}

const (
	burnt     = 300 * time.Millisecond // by each child of a parent
	perAnswer = time.Millisecond       // of processor time, or of sleep, in each answer of a server
)

// burn takes processor time, by the clock of its thread: other programs do not change how much.
func burn(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for began := threadTime(); threadTime()-began < d; {
	}
}

func threadTime() time.Duration {
	var t unix.Timespec
	check(unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
	return time.Duration(t.Nano())
}

// serve answers requests, after a sleep or after work.
func serve(mode, address string) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		os.Exit(0)
	}()
	check(http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch mode {
		case "works":
			burn(perAnswer)
		case "sleeps":
			time.Sleep(perAnswer)
		}
		_, _ = io.WriteString(w, "ok")
	})))
}

// becomeParent starts a child that takes processor time and ends, and one that takes as much and
// goes on, as the processes of Postgres do.
func becomeParent() {
	for _, ends := range []bool{true, false} {
		child := exec.Command(must(os.Executable()))
		child.Env = append(os.Environ(), helperMode+"=burn")
		input, output := must(child.StdinPipe()), must(child.StdoutPipe())
		check(child.Start())
		must(bufio.NewReader(output).ReadString('\n'))
		if ends {
			check(input.Close())
			check(child.Wait())
		}
	}
	fmt.Println("both")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// startHelper starts this program in a mode.
func startHelper(t *testing.T, mode string) (p *harness.Process, address string) {
	address = harness.FreeAddress(t)
	p = harness.Start(t, harness.Program{Name: mode, Path: must(os.Executable()), Env: []string{helperMode + "=" + mode, "ADDRESS=" + address}})
	return p, address
}

// TestCPUIncludesChildrenThatHaveEnded, and those that run.
func TestCPUIncludesChildrenThatHaveEnded(t *testing.T) {
	parent := exec.Command(must(os.Executable()))
	parent.Env = append(os.Environ(), helperMode+"=parent")
	input, output := must(parent.StdinPipe()), must(parent.StdoutPipe())
	check(parent.Start())
	must(bufio.NewReader(output).ReadString('\n'))
	found := time.Duration(cpuTime(parent.Process.Pid)) * time.Microsecond
	check(input.Close())
	check(parent.Wait())
	// The start of three Go programs takes some time, too.
	if found < 2*burnt-20*time.Millisecond || found > 3*burnt {
		t.Errorf("%v, want %v and a little more", found, 2*burnt)
	}
}

// TestWorkOfARequestIsSeenAndSleepIsNot: a server works or sleeps for a millisecond in each
// answer, and its control does not.
func TestWorkOfARequestIsSeenAndSleepIsNot(t *testing.T) {
	few := load{draw: uniform, keys: 10, connections: 4}
	for _, c := range []struct {
		mode      string
		low, high float64 // µs
	}{{"works", 900, 1200}, {"sleeps", -150, 150}} {
		t.Run(c.mode, func(t *testing.T) {
			b := newBench(t.Context())
			b.rounds, b.slice = fewest, 20*time.Millisecond
			sides := map[string]*side{}
			for _, mode := range []string{c.mode, "answers"} {
				process, address := startHelper(t, mode)
				process.AwaitAddress(t, address)
				s := &side{row: &row{load: few}, proxy: &proxy{Process: process, row: &row{}}, client: newClient(address, few)}
				defer s.client.close()
				sides[mode] = s
			}
			first, second := sides[c.mode], sides["answers"]
			first.row.control = second.row
			b.takeTurns(first, second)
			if e := first.row.difference(cpuAll); e.value < c.low || e.value > c.high || first.row.wrong > 0 {
				t.Errorf("a request takes %s µs more, want %.0f to %.0f; %d wrong answers", e.text(1), c.low, c.high, first.row.wrong)
			}
		})
	}
}

// slowServer answers one connection after the other, each request after a delay.
func slowServer(t *testing.T, delay time.Duration, answer func(n int) string) (address string) {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for n := 0; ; {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			for reader := bufio.NewReader(conn); ; n++ {
				if _, err := http.ReadRequest(reader); err != nil {
					break
				}
				time.Sleep(delay)
				_, _ = io.WriteString(conn, answer(n))
			}
			_ = conn.Close()
		}
	}()
	return listener.Addr().String()
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// TestPacedLoadCountsWaiting: a load that waited for answers would not see more than the delay.
func TestPacedLoadCountsWaiting(t *testing.T) {
	c := newClient(slowServer(t, 20*time.Millisecond, func(int) string { return okAnswer }), load{draw: uniform, keys: 9, connections: 1, rate: 100})
	defer c.close()
	r := c.run(2 * time.Second)
	// 200 requests were due in two seconds, and take four.
	if r.requests != 200 || r.percentile(99) < 1900 || r.percentile(50) < 900 {
		t.Errorf("%d requests, the median is %.0f ms and the p99 %.0f ms", r.requests, r.percentile(50), r.percentile(99))
	}
}

// TestWrongAnswersAreCounted: other statuses, a page that is not the proxy's site, and no answer.
func TestWrongAnswersAreCounted(t *testing.T) {
	answers := []string{okAnswer, "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "nonsense\r\n\r\n", okAnswer}
	c := newClient(slowServer(t, 0, func(n int) string { return answers[n%len(answers)] }), load{draw: inTurn, keys: 9, connections: 1})
	r := c.sendN(10)
	c.close()
	if r.status[http.StatusOK] != 4 || r.status[http.StatusTooManyRequests] != 2 || r.failed != 4 || r.unlike(http.StatusOK) != 6 || r.unlike(http.StatusOK, http.StatusTooManyRequests) != 4 {
		t.Errorf("found %+v", r)
	}
	if c := newClient(harness.FreeAddress(t), load{draw: uniform, keys: 9, connections: 2}); c.sendN(10).failed != 10 {
		t.Error("requests without a server were answered")
	}
}

// TestDraws: each draws keys of its range; only used has new ones, and a tenth of them.
func TestDraws(t *testing.T) {
	const keys, n = 1000, 10000
	for name, c := range map[string]struct {
		draw      draw
		low, high int // different keys
	}{"uniform": {uniform, 990, keys}, "Zipf": {zipf, 500, 999}, "in turn": {inTurn, keys, keys}, "used": {used, 1800, 2200}} {
		from := newClient("", load{draw: c.draw, keys: keys, connections: 1}).connections[0]
		seen := map[int]bool{}
		for range n {
			k := c.draw(from, keys)
			if seen[k] = true; k < 0 || k >= keys && name != "used" {
				t.Errorf("%s: key %d", name, k)
			}
		}
		if len(seen) < c.low || len(seen) > c.high {
			t.Errorf("%s: %d different keys", name, len(seen))
		}
	}
}
