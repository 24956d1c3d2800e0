package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// root is the folder of the repository.
const root = ".."

// modulePath is the path of the Go module, which is the name of the plugin in Traefik.
const modulePath = "github.com/pgratelimit/pg-ratelimit"

// tag is the version in the names of our images.
var tag = strings.TrimPrefix(host.Version, "v")

// output returns the output of a command that must succeed, without white space at its ends.
func output(t *testing.T, command ...string) string {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = &stderr // apart: with an empty cache, Go names there what it downloads
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s%s", command, err, out, &stderr)
	}
	return strings.TrimSpace(string(out))
}

// readFile returns the text of a file.
func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// object is an object of YAML.
type object = map[string]any

// readObjects returns the objects of a YAML file, by their kinds in a file for Kubernetes.
func readObjects(t *testing.T, path string) object {
	t.Helper()
	all := object{}
	decoder := yaml.NewDecoder(bytes.NewReader([]byte(readFile(t, path))))
	for {
		var o object
		if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[fmt.Sprint(o["kind"])] = o
	}
}

// at returns the value at a path of names and indexes.
func at[T any](t *testing.T, value any, path ...any) T {
	t.Helper()
	for _, step := range path {
		switch v := value.(type) {
		case object:
			value = v[step.(string)]
		case []any:
			value = v[step.(int)]
		}
	}
	found, ok := value.(T)
	if !ok {
		t.Fatalf("the file has %v at %v, want a %T", value, path, found)
	}
	return found
}

// startUpstream starts an app that responds "app", and returns its address.
func startUpstream(t *testing.T) string {
	t.Helper()
	url := harness.Serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "app") })
	return strings.TrimPrefix(url, "http://")
}

// replaceAll replaces the first text of each pair with the second, and fails if the first does not occur.
func replaceAll(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("the text has no %q:\n%s", pairs[i], text)
		}
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// copyPlugin copies what the Dockerfile copies into the image of the plugin, into a folder for Traefik.
func copyPlugin(t *testing.T, folder string) {
	t.Helper()
	_, stage, _ := strings.Cut(readFile(t, "Dockerfile"), " AS plugin\n")
	stage, _, _ = strings.Cut(stage, "\nFROM ")
	for _, paths := range submatches(`(?m)^COPY (.*) \S+$`, stage) {
		for path := range strings.FieldsSeq(paths) {
			to := filepath.Join(folder, "src", modulePath)
			output(t, "mkdir", "-p", to)
			output(t, "cp", "-R", filepath.Join(root, path), to)
		}
	}
}
