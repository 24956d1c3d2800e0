package docs

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// In an empty folder, the steps of docs/traefik.md lead to a request that the documented limit counts. The
// test changes only the addresses.
func TestTheGuideOfTraefikIsEnough(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer app.Close()
	clone, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	program, err := harness.Traefik(t.Context(), filepath.Join(root, "integration"))
	if err != nil {
		t.Fatal(err)
	}
	dir, address := t.TempDir(), harness.FreeAddress(t)
	for _, d := range documents(t) {
		if d.path != "docs/traefik.md" {
			continue
		}
		install := exec.Command("sh", "-c", strings.ReplaceAll(strings.TrimPrefix(d.blocks[0].text, "$ "),
			"/path/to/clone", clone))
		install.Dir = dir
		if out, err := install.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		// Block 2, between them, is for a plugin that is published.
		files := map[string]string{
			"traefik.yml": strings.Replace(d.blocks[1].text, `":80"`, address, 1),
			"dynamic.yml": strings.Replace(d.blocks[3].text, "http://app:8000", app.URL, 1),
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	tr := harness.Start(t, harness.Program{Name: "traefik", Path: program, Dir: dir,
		Args: []string{"--configFile=traefik.yml"}, Env: []string{"DATABASE_URL=" + cluster.Open(t)}})
	tr.AwaitAddress(t, address)
	request := harness.Get("http://" + address)
	request.Host = "api.example.com"
	tr.Await(t, "a request that is limited", func() bool {
		response := harness.Ask(t, request)
		return response.Status == http.StatusOK && response.Header.Get("X-RateLimit-Limit") == "100"
	})
}
