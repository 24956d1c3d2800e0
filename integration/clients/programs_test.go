package clients

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/install"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/npm"
)

// runProgram runs a program that prints a report in each line.
func runProgram(t *testing.T, to chan<- report, cmd *exec.Cmd) {
	t.Helper()
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Error(err)
		return
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var r report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Errorf("%s: %v", lines.Text(), err)
		}
		to <- r
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%s: %v", cmd, err)
	}
}

func runNode(t *testing.T, url string, to chan<- report) {
	modules, err := npm.Modules(t.Context(), "../.cache/npm", "openai@6.49.0", "@anthropic-ai/sdk@1.14.0",
		"ai@6.0.325", "@ai-sdk/openai@3.0.141", "@ai-sdk/anthropic@3.0.140", "@google/genai@2.32.0",
		"got@14.6.6", "axios@1.21.1", "axios-retry@4.5.0")
	if err != nil {
		t.Error(err)
		return
	}
	// Node looks for packages beside the program.
	program := filepath.Join(filepath.Dir(modules), "clients.mjs")
	text, err := os.ReadFile("testdata/clients.mjs")
	if err == nil {
		err = os.WriteFile(program, text, 0o644)
	}
	if err != nil {
		t.Error(err)
		return
	}
	runProgram(t, to, exec.CommandContext(t.Context(), "node", program, url, strings.Join(kinds, ","),
		fmt.Sprint(patience.Seconds())))
}

func runPython(t *testing.T, url string, to chan<- report) {
	const python = "/usr/bin/python3"
	exist := func() bool { return exec.Command(python, "-c", "import urllib3").Run() == nil }
	if err := install.Debian(t.Context(), os.Stderr, "urllib3", exist, "python3-urllib3"); err != nil {
		t.Error(err)
		return
	}
	runProgram(t, to, exec.CommandContext(t.Context(), python, "testdata/clients.py", url,
		strings.Join(kinds, ","), fmt.Sprint(patience.Seconds())))
}

func runCurl(t *testing.T, url string, to chan<- report) {
	var running sync.WaitGroup
	for _, kind := range kinds {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			out, err := exec.CommandContext(ctx, "curl", "-sS", "--retry", "2", "-o",
				filepath.Join(t.TempDir(), kind), "-w", "%{http_code}\n", url+"/curl/"+kind).Output()
			to <- report{"curl", kind, endOf(ctx, strings.TrimSpace(string(out)), err)}
		})
	}
	running.Wait()
}

// endOf returns the end of a request from the status that a program printed, or from its error.
func endOf(ctx context.Context, status string, err error) string {
	switch {
	case ctx.Err() != nil:
		return "waits"
	case err != nil:
		return "refused " + err.Error()
	case status == "200":
		return "passed"
	}
	return "refused " + status
}

// runBrowser lets a page fetch each kind.
func runBrowser(t *testing.T, url string, to chan<- report) {
	chromium, err := harness.Installed(t.Context(), "chromium")
	if err != nil {
		t.Error(err)
		return
	}
	page := fmt.Sprintf(`<body><script>
const kinds = %q.split(",")
Promise.all(kinds.map(async k => {
	await fetch("%s/browser/" + k, {method: "POST", body: "{}", mode: "no-cors"}).catch(e => e)
	return k
})).then(all => document.body.textContent = "ended " + all.join(" "))
</script></body>`, strings.Join(kinds, ","), url)
	address := harness.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(page))
	})
	out, err := exec.CommandContext(t.Context(), chromium, "--headless", "--no-sandbox", "--disable-gpu",
		"--no-first-run", "--disable-background-networking", "--user-data-dir="+t.TempDir(),
		"--virtual-time-budget=60000", "--dump-dom", address).Output()
	if err != nil || !strings.Contains(string(out), "ended "+strings.Join(kinds, " ")) {
		t.Errorf("the browser: %v, %s", err, out)
	}
	for _, kind := range kinds {
		to <- report{"browser", kind, "refused"}
	}
}
