package traefikplugin

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

const passwordWarning = "the dsn in the configuration holds a password"

// captureLog returns the lines that the plugin logs while do runs.
func captureLog(t *testing.T, do func()) string {
	t.Helper()
	return captureLogUntil(t, "", do)
}

// captureLogUntil calls do until a line of the log starts with want, and returns the log.
func captureLogUntil(t *testing.T, want string, do func()) string {
	t.Helper()
	buffer := &harness.Buffer{}
	defer log.SetOutput(log.Writer())
	log.SetOutput(buffer)
	await.Within(t, time.Minute, "the line "+want+" in the log", func() bool {
		do()
		return strings.Contains("\n"+buffer.String(), "\n"+want)
	})
	return buffer.String()
}

// The DSN may be in a file. Neither the log nor an error shows the password of the DSN. A file beside a DSN,
// and a missing file, are errors.
func TestPasswordInDSNFileIsHidden(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	path := filepath.Join(t.TempDir(), "dsn")
	for text, want := range map[string]string{
		"postgres://u:hunter2@127.0.0.1:1/db\n": "<nil>",
		"memory":                                "<nil>",
		"\n": `dsnFile: "` + path +
			`": must be a file with a Postgres URL`,
		"mysql://u:hunter2@h\n": "dsn: ",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := validConfig(Settings{"dsn": "", "dsnFile": path})
		var err error
		output := captureLog(t,
			func() { _, err = newHandler(t.Context(), nil, c, "test", newProcess(time.Minute)) })
		failure := fmt.Sprint(err)
		if !strings.HasPrefix(failure, want) {
			t.Errorf("%q in the file: error %s, want %s", text, failure, want)
		}
		for _, unwanted := range []string{"hunter2", passwordWarning} {
			if strings.Contains(output+failure, unwanted) {
				t.Errorf("%q in the file: log %q, error %s; want no %s", text, output, failure, unwanted)
			}
		}
	}
	_, err := New(t.Context(), nil, validConfig(Settings{"dsnFile": path}), "test")
	if !strings.Contains(fmt.Sprint(err), "dsnFile: ") {
		t.Errorf("with dsn and dsnFile: error %v, want one about dsnFile", err)
	}
	_, err = New(t.Context(), nil, validConfig(Settings{"dsn": "", "dsnFile": path + ".missing"}), "test")
	if !strings.Contains(fmt.Sprint(err), "must be a file that Traefik can read") {
		t.Errorf("without a file: error %v, want one about the file", err)
	}
}

// The log warns once for each DSN with a password, because Traefik's API shows it to its users.
func TestPasswordInDSNWarnsOnce(t *testing.T) {
	for dsn, want := range map[string]int{"postgres://u:hunter2@127.0.0.1:1/db": 1,
		"postgres://u@127.0.0.1:1/db": 0, "memory": 0} {
		p := newProcess(time.Minute)
		output := captureLog(t, func() {
			for range 3 {
				newMiddleware(t, t.Context(), p, nil, validConfig(Settings{"dsn": dsn}))
			}
		})
		if n := strings.Count(output, passwordWarning); n != want || strings.Contains(output, "hunter2") {
			t.Errorf("%s: log %q, want %d warnings without the password", dsn, output, want)
		}
	}
}
