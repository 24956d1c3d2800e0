package traefikplugin

import (
	"bytes"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
)

const passwordWarning = "the dsn in the configuration holds a password"

// logged returns the lines that the plugin logs while do runs.
func logged(t *testing.T, do func()) string {
	t.Helper()
	return loggedUntil(t, "", do)
}

// loggedUntil calls do until a line of the log begins with want, and returns the log.
func loggedUntil(t *testing.T, want string, do func()) string {
	t.Helper()
	text := &lockedBuffer{}
	before := log.Writer()
	log.SetOutput(text)
	defer log.SetOutput(before)
	await.Within(t, time.Minute, "the log to have "+want,
		func() bool { do(); return strings.Contains("\n"+text.String(), "\n"+want) })
	return text.String()
}

// lockedBuffer is a bytes.Buffer for several goroutines.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestTheDSNMayBeInAFile(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	path := filepath.Join(t.TempDir(), "dsn")
	for text, want := range map[string]string{
		"postgres://u:hunter2@127.0.0.1:1/db\n": "",
		"memory":                                "",
		"\n": `dsnFile: "` + path +
			`": must be a file with a Postgres URL`,
		"mysql://u:hunter2@h\n": "dsn: ",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := valid()
		c.Other["dsn"], c.Other["dsnFile"] = "", path
		var err error
		output := logged(t,
			func() { _, err = newHandler(t.Context(), nil, c, "test", newProcess(time.Minute)) })
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q in the file: %v, want %s", text, err, want)
		}
		if strings.Contains(output, "hunter2") || strings.Contains(output, passwordWarning) ||
			err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q in the file: logs %q, %v", text, output, err)
		}
	}
	c := valid()
	c.Other["dsnFile"] = path
	if _, err := New(t.Context(), nil, c, "test"); err == nil || !strings.Contains(err.Error(), "dsnFile: ") {
		t.Errorf("dsn and dsnFile: %v", err)
	}
	c.Other["dsn"], c.Other["dsnFile"] = "", path+".missing"
	if _, err := New(t.Context(), nil, c, "test"); err == nil ||
		!strings.Contains(err.Error(), "must be a file that Traefik can read") {
		t.Errorf("no file: %v", err)
	}
}

// The log warns once for each database if Traefik's API shows its password.
func TestTheLogWarnsOfAPasswordInTheConfiguration(t *testing.T) {
	for dsn, want := range map[string]int{"postgres://u:hunter2@127.0.0.1:1/db": 1,
		"postgres://u@127.0.0.1:1/db": 0, "memory": 0} {
		p := newProcess(time.Minute)
		output := logged(t, func() {
			for range 3 {
				c := valid()
				c.Other["dsn"] = dsn
				open(t, t.Context(), p, nil, c)
			}
		})
		if n := strings.Count(output, passwordWarning); n != want || strings.Contains(output, "hunter2") {
			t.Errorf("%s: logs %q, want %d warnings", dsn, output, want)
		}
	}
}
