// Package caddytest runs a Caddy in the process of a test.
package caddytest

import (
	"encoding/json"
	"errors"
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

// Caddy is a Caddy in this process, on a port of the loopback interface.
type Caddy struct {
	t    *testing.T
	Port string
	log  string // the path of the log
	run  int64  // the number of this Caddy in this process, for Prefix
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

// Start runs Caddy with a Caddyfile. In source, PORT stands for the port, and PREFIX for a name that no other
// test uses, because counts in memory outlast a test.
func Start(t *testing.T, source string) *Caddy {
	t.Helper()
	c := &Caddy{t: t, Port: strconv.Itoa(harness.FreePort(t)), log: filepath.Join(t.TempDir(), "log"),
		run: runs.Add(1)}
	c.Load(source)
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
		c.awaitListeners(0)
	})
	return c
}

// Load replaces the config, as `caddy reload` does.
func (c *Caddy) Load(source string) {
	c.t.Helper()
	text := strings.NewReplacer("PORT", c.Port, "PREFIX", c.Prefix()).Replace(source)
	config, err := Adapt(string(caddyfile.Format([]byte(text))))
	if err != nil {
		c.t.Fatal(err)
	}
	c.LoadJSON(config)
}

// LoadJSON replaces the config.
func (c *Caddy) LoadJSON(config []byte) {
	c.t.Helper()
	if err := c.TryJSON(config); err != nil {
		c.t.Fatal(err)
	}
}

// TryJSON replaces the config, or returns Caddy's error. It adds settings that all tests need: no admin
// endpoint, no TLS, and a log in a file. It returns when the previous config no longer gets connections.
// Caddy itself does not wait for that, so the next request could go to the previous config.
func (c *Caddy) TryJSON(config []byte) error {
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
func (c *Caddy) awaitListeners(n int64) {
	c.t.Helper()
	await.Within(c.t, time.Minute, strconv.FormatInt(n, 10)+" listeners are open",
		func() bool { return listening.Load() == n })
}

// Prefix returns a name that differs between tests and between runs of a test.
func (c *Caddy) Prefix() string {
	return strings.NewReplacer("/", "_", " ", "_").Replace(c.t.Name()) + strconv.FormatInt(c.run, 10)
}

// Client opens a connection for each request, so that none stays open.
var Client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// Get sends a request. headers alternates between names and values.
func (c *Caddy) Get(path string, headers ...string) harness.Response {
	c.t.Helper()
	a, err := c.GetRetrying(path, headers...)
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

// GetRetrying sends a request, and sends it again if no handler has read it.
func (c *Caddy) GetRetrying(path string, headers ...string) (harness.Response, error) {
	a, err := c.try(path, headers...)
	for attempt := 0; attempt < 3 && harness.Unheard(err); attempt++ {
		a, err = c.try(path, headers...)
	}
	return a, err
}

func (c *Caddy) try(path string, headers ...string) (harness.Response, error) {
	return harness.AskBy(Client, harness.Get("http://127.0.0.1:"+c.Port+path, headers...))
}

// Expect sends a request, checks the status of the response, and returns the response.
func (c *Caddy) Expect(status int, path string, headers ...string) harness.Response {
	c.t.Helper()
	a := c.Get(path, headers...)
	if a.Status != status {
		c.t.Fatalf("%s %v: status %d, want %d; body %q", path, headers, a.Status, status, a.Body)
	}
	return a
}

// Number returns the whole number in a header of a response.
func Number(t *testing.T, a harness.Response, header string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(a.Header.Get(header), 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", header, err)
	}
	return n
}

// LogText returns the log of Caddy so far.
func (c *Caddy) LogText() string {
	c.t.Helper()
	data, err := os.ReadFile(c.log)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(data)
}

// LogEntries returns the entries of the log so far that have a message.
func (c *Caddy) LogEntries(message string) []map[string]any {
	c.t.Helper()
	var entries []map[string]any
	for _, line := range strings.Split(strings.TrimSpace(c.LogText()), "\n") {
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

// Renew changes Prefix, for another Caddyfile with counters of its own.
func (c *Caddy) Renew() { c.run = runs.Add(1) }

// Main runs the tests of a package, and keeps Caddy's files out of the home directory. TestMain calls it.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pg_ratelimit_caddy")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := errors.Join(os.Setenv("XDG_CONFIG_HOME", dir), os.Setenv("XDG_DATA_HOME", dir)); err != nil {
		panic(err)
	}
	caddy.DefaultStorage.Path = dir
	caddy.ConfigAutosavePath = filepath.Join(dir, "autosave.json")
	return m.Run()
}
