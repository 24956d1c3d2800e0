package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/npm"
)

// nodeProgram is a Node process that runs testdata/npm/serve.mjs. Its methods
// are safe for concurrent use.
type nodeProgram struct {
	stdin io.WriteCloser

	mu      sync.Mutex
	next    int
	waiting map[int]chan nodeReply
	ended   bool
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

type nodeRequest struct {
	ID  int      `json:"id"`
	Do  string   `json:"do"`
	Hit *nodeHit `json:"hit,omitempty"`
}

type nodeReply struct {
	ID      int    `json:"id"`
	Success bool   `json:"success"`
	Error   string `json:"error"`
}

// startNode starts a Node program on a database. It ends with the test, and
// also where this process is killed: it reads what this one writes.
func startNode(t *testing.T, dsn string) *nodeProgram {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/npm")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(nodeModules(t, "testdata/npm/package.json"),
		filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "node", "serve.mjs")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DATABASE_URL="+dsn)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n := &nodeProgram{stdin: stdin, waiting: map[int]chan nodeReply{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		n.read(stdout)
	}()
	t.Cleanup(func() {
		timer := time.AfterFunc(time.Minute, cancel)
		defer timer.Stop()
		defer cancel()
		if err := stdin.Close(); err != nil {
			t.Error(err)
		}
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("node ended with %v: %s", err, stderr.String())
		}
	})
	return n
}

// read hands out the answers until there are no more.
func (n *nodeProgram) read(stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var reply nodeReply
		if err := json.Unmarshal(lines.Bytes(), &reply); err != nil {
			reply.Error = err.Error()
		}
		n.mu.Lock()
		if to, ok := n.waiting[reply.ID]; ok {
			to <- reply
			delete(n.waiting, reply.ID)
		}
		n.mu.Unlock()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = true
	for _, to := range n.waiting {
		to <- nodeReply{Error: "node has ended"}
	}
}

// ask sends a request and waits for its answer.
func (n *nodeProgram) ask(r nodeRequest) (bool, error) {
	answer := make(chan nodeReply, 1)
	n.mu.Lock()
	if n.ended {
		n.mu.Unlock()
		return false, errors.New("node has ended")
	}
	n.next++
	r.ID = n.next
	n.waiting[r.ID] = answer
	line, err := json.Marshal(r)
	if err == nil {
		_, err = n.stdin.Write(append(line, '\n'))
	}
	n.mu.Unlock()
	if err != nil {
		return false, err
	}
	reply := <-answer
	if reply.Error != "" {
		return false, fmt.Errorf("node: %s", reply.Error)
	}
	return reply.Success, nil
}

// tables makes the library's tables, as every start of a Node program does.
func (n *nodeProgram) tables(t *testing.T) {
	t.Helper()
	if _, err := n.ask(nodeRequest{Do: "tables"}); err != nil {
		t.Fatal(err)
	}
}

// take reports whether a hit passes.
func (n *nodeProgram) take(hit nodeHit) (bool, error) {
	return n.ask(nodeRequest{Do: "hit", Hit: &hit})
}

// nodeModules are those that a package.json asks for.
func nodeModules(t *testing.T, manifest string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	modules, err := npm.Modules(ctx, manifest, "../.cache/npm")
	if err != nil {
		t.Fatal(err)
	}
	return modules
}
