package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/npm"
)

// nodeProgram is a Node process that runs testdata/npm/serve.mjs. Its methods
// are safe for concurrent use.
type nodeProgram struct {
	url    string
	client *http.Client
}

// nodeHit is one hit on a limit; see limits.mjs.
type nodeHit struct {
	Algorithm string `json:"algorithm"`
	Table     string `json:"table"`
	Prefix    string `json:"prefix"`
	Key       string `json:"key"`
	Cost      int64  `json:"cost"`
	Limit     int64  `json:"limit"`
	WindowMs  int64  `json:"windowMs"`
}

// startNode starts a Node program on a database, which ends with the test.
func startNode(t *testing.T, dsn string) *nodeProgram {
	t.Helper()
	dir := nodeFolder(t, "npm", "pg@8.23.1")
	program, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	address := harness.FreeAddress(t)
	_, port, _ := strings.Cut(address, ":")
	harness.Start(t, harness.Program{Path: program, Dir: dir, Args: []string{"serve.mjs", port},
		Env: []string{"DATABASE_URL=" + dsn}}).AwaitAddress(t, address)
	n := &nodeProgram{"http://" + address, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	t.Cleanup(n.client.CloseIdleConnections)
	return n
}

// ask sends a request and reports whether the response is "true".
func (n *nodeProgram) ask(path string, body any) (passes bool, err error) {
	data, err := json.Marshal(body)
	if err != nil {
		return false, err
	}
	request, err := http.NewRequest(http.MethodPost, n.url+path, bytes.NewReader(data))
	if err != nil {
		return false, err
	}
	response, err := harness.AskBy(n.client, request)
	if err == nil && response.Status != http.StatusOK {
		err = fmt.Errorf("node: %s", response.Body)
	}
	return response.Body == "true", err
}

// tables creates the library's tables, as every start of a Node program does.
func (n *nodeProgram) tables(t *testing.T) {
	t.Helper()
	if _, err := n.ask("/tables", nil); err != nil {
		t.Fatal(err)
	}
}

// take reports whether a hit passes.
func (n *nodeProgram) take(hit nodeHit) (bool, error) { return n.ask("/hit", hit) }

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
