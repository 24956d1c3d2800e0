package command_test

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The page is served until a signal ends the program.
func TestThePageIsServedUntilASignal(t *testing.T) {
	s := newShell(t)
	s.must("migrate")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "pg-ratelimit", "page", "--dsn", s.dsn, "--listen", "127.0.0.1:0")
	cmd.Env = []string{asCaddy + "=1", "HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(line, "The page is at ")
	url, _, _ := strings.Cut(rest, " ")
	for path, want := range map[string]string{"": "<!doctype html>", "api/session": `"write":false`, "api/state": `"mode":"no_proxies"`, "metrics": "pg_ratelimit_database_up 1"} {
		response, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(text), want) {
			t.Errorf("%s%s: status %d, %v: %.500s, want %s", url, path, response.StatusCode, err, text, want)
		}
	}
	stream, err := http.Get(url + "api/events") // which is open at the end
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the program does not end")
	}
}

func TestThePageIsForThisMachine(t *testing.T) {
	s := newShell(t)
	for _, listen := range []string{"0.0.0.0:0", ":2020", "192.0.2.1:2020", "2020"} {
		said, status := s.program(nil, "pg-ratelimit", "page", "--dsn", s.dsn, "--listen", listen)
		if status == 0 || !strings.Contains(said.stderr, "--listen: ") {
			t.Errorf("%s: status %d: %s", listen, status, said.stderr)
		}
	}
}
