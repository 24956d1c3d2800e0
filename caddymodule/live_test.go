package caddymodule_test

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// live is a Caddy in this process, on a port of the loopback interface.
type live struct {
	t    *testing.T
	port string
	log  string // the path of the log
	run  int64  // the number of this Caddy in this process, for prefix
}

// runs is the number of Caddys that this process has started.
var runs atomic.Int64

// listening is the number of open listeners of this process's Caddys.
var listening atomic.Int64

func init() {
	caddy.RegisterModule(countListeners{})
}

// countListeners is a module that keeps listening up to date.
type countListeners struct{}

func (countListeners) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.listeners.pg_ratelimit_test",
		New: func() caddy.Module { return countListeners{} }}
}

func (countListeners) WrapListener(l net.Listener) net.Listener {
	listening.Add(1)
	return &countedListener{Listener: l}
}

type countedListener struct {
	net.Listener
	closed sync.Once
}

func (l *countedListener) Close() error {
	err := l.Listener.Close()
	l.closed.Do(func() { listening.Add(-1) })
	return err
}

// start runs Caddy with a Caddyfile. In source, PORT stands for the port, and PREFIX for a name that no other
// test uses, because counts in memory outlast a test.
func start(t *testing.T, source string) *live {
	t.Helper()
	c := &live{t: t, port: strconv.Itoa(harness.FreePort(t)), log: filepath.Join(t.TempDir(), "log"),
		run: runs.Add(1)}
	c.load(source)
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
		c.awaitListeners(0)
	})
	return c
}

// load replaces the config, as `caddy reload` does.
func (c *live) load(source string) {
	c.t.Helper()
	text := strings.NewReplacer("PORT", c.port, "PREFIX", c.prefix()).Replace(source)
	config, err := adapt(string(caddyfile.Format([]byte(text))))
	if err != nil {
		c.t.Fatal(err)
	}
	c.loadJSON(config)
}

// loadJSON replaces the config.
func (c *live) loadJSON(config []byte) {
	c.t.Helper()
	if err := c.tryJSON(config); err != nil {
		c.t.Fatal(err)
	}
}

// tryJSON replaces the config, or returns Caddy's error. It adds settings that all tests need: no admin
// endpoint, no TLS, and a log in a file. It returns when the previous config no longer gets connections.
// Caddy itself does not wait for that, so the next request could go to the previous config.
func (c *live) tryJSON(config []byte) error {
	c.t.Helper()
	var whole map[string]any
	if err := json.Unmarshal(config, &whole); err != nil {
		c.t.Fatal(err)
	}
	whole["admin"] = map[string]any{"disabled": true, "config": map[string]any{"persist": false}}
	whole["logging"] = map[string]any{"logs": map[string]any{"default": map[string]any{
		"level": "DEBUG", "encoder": map[string]any{"format": "json"},
		"writer": map[string]any{"output": "file", "filename": c.log},
	}}}
	listeners := 0
	for _, s := range whole["apps"].(map[string]any)["http"].(map[string]any)["servers"].(map[string]any) {
		server := s.(map[string]any)
		server["automatic_https"] = map[string]any{"disable": true}
		server["listener_wrappers"] = []any{map[string]any{"wrapper": "pg_ratelimit_test"}}
		listeners += len(server["listen"].([]any))
	}
	config, err := json.Marshal(whole)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := caddy.Load(config, true); err != nil {
		return err
	}
	c.awaitListeners(int64(listeners))
	return nil
}

// awaitListeners waits until n listeners are open.
func (c *live) awaitListeners(n int64) {
	c.t.Helper()
	await.Within(c.t, time.Minute, strconv.FormatInt(n, 10)+" listeners are open",
		func() bool { return listening.Load() == n })
}

// prefix returns a name that differs between tests and between runs of a test.
func (c *live) prefix() string {
	return strings.NewReplacer("/", "_", " ", "_").Replace(c.t.Name()) + strconv.FormatInt(c.run, 10)
}

// client opens a connection for each request, so that none stays open.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// get sends a request. headers alternates between names and values.
func (c *live) get(path string, headers ...string) harness.Response {
	c.t.Helper()
	a, err := c.getAgain(path, headers...)
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

// getAgain sends a request, and sends it again if no handler has read it.
func (c *live) getAgain(path string, headers ...string) (harness.Response, error) {
	a, err := c.try(path, headers...)
	for attempt := 0; attempt < 3 && harness.Unheard(err); attempt++ {
		a, err = c.try(path, headers...)
	}
	return a, err
}

func (c *live) try(path string, headers ...string) (harness.Response, error) {
	return harness.AskBy(client, harness.Get("http://127.0.0.1:"+c.port+path, headers...))
}

// expect sends a request, checks the status of the response, and returns the response.
func (c *live) expect(status int, path string, headers ...string) harness.Response {
	c.t.Helper()
	a := c.get(path, headers...)
	if a.Status != status {
		c.t.Fatalf("%s %v: status %d, want %d; body %q", path, headers, a.Status, status, a.Body)
	}
	return a
}

// number returns the whole number in a header of a response.
func number(t *testing.T, a harness.Response, header string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(a.Header.Get(header), 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", header, err)
	}
	return n
}

// logText returns the log of Caddy so far.
func (c *live) logText() string {
	c.t.Helper()
	data, err := os.ReadFile(c.log)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(data)
}

// logEntries returns the entries of the log so far that have a message.
func (c *live) logEntries(message string) []map[string]any {
	c.t.Helper()
	var entries []map[string]any
	for _, line := range strings.Split(strings.TrimSpace(c.logText()), "\n") {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			c.t.Fatalf("%v: %s", err, line)
		}
		if entry["msg"] == message {
			entries = append(entries, entry)
		}
	}
	return entries
}
