package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/npm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// nodeProgram is a Node process that runs testdata/npm/serve.mjs.
type nodeProgram struct {
	*testing.T
	url string
}

// startNode starts a Node program on a database, which ends with the test.
func startNode(t *testing.T, dsn string) *nodeProgram {
	t.Helper()
	dir := nodeFolder(t, "npm", "pg@8.23.1")
	program, err := exec.LookPath("node")
	check.OK(t, err)
	address := harness.FreeAddress(t)
	_, port, _ := strings.Cut(address, ":")
	harness.Start(t, harness.Program{Path: program, Dir: dir, Args: []string{"serve.mjs", port},
		Env: []string{"DATABASE_URL=" + dsn}}).AwaitAddress(t, address)
	return &nodeProgram{t, "http://" + address}
}

// ask sends a request, and reports whether the response is "true". The path /tables creates the library's
// tables, as every start of a Node program does.
func (n *nodeProgram) ask(path string, body any) bool {
	n.Helper()
	data, err := json.Marshal(body)
	check.OK(n, err)
	request, err := http.NewRequest(http.MethodPost, n.url+path, bytes.NewReader(data))
	check.OK(n, err)
	response := harness.Ask(n, request)
	if response.Status != http.StatusOK {
		n.Fatalf("node: %s", response.Body)
	}
	return response.Body == "true"
}

// take is a taker; see limits.mjs.
func (n *nodeProgram) take(l *ratelimit.Limit, cost int64) bool {
	n.Helper()
	table := "rate_limit_ephemeral"
	if l.Durable {
		table = "rate_limit_durable"
	}
	return n.ask("/hit", map[string]any{"algorithm": l.Algorithm.String(), "table": table, "prefix": l.Prefix,
		"key": "user:1", "cost": cost, "limit": l.Events, "windowMs": l.Window.Milliseconds()})
}

// nodeFolder returns a copy of a folder of testdata with a package of npm.
func nodeFolder(t *testing.T, name, dependency string) (dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	dir = t.TempDir()
	modules, err := npm.Modules(ctx, "../.cache/npm", dependency)
	err = errors.Join(err, os.CopyFS(dir, os.DirFS("testdata/"+name)),
		os.Symlink(modules, filepath.Join(dir, "node_modules")))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
