package harness

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// ModulePath is the plugin's name in Traefik.
const ModulePath = "github.com/pgratelimit/pg-ratelimit"

// LinkPlugin links the repository into a GOPATH, in which Traefik searches for the sources of a local plugin.
func LinkPlugin(t testing.TB, root, gopath string) {
	t.Helper()
	link := filepath.Join(gopath, "src", filepath.FromSlash(ModulePath))
	target, err := filepath.Abs(root)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(link), 0o755)
	}
	if err == nil {
		err = os.Symlink(target, link)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Traefik builds Traefik from the module in integration/traefik, and returns the program's path. integration
// is the path of the folder integration. Later calls in any process find the program in integration/.cache.
// Its name has a digest of the versions from which it was built.
func Traefik(ctx context.Context, integration string) (string, error) {
	module := filepath.Join(integration, "traefik")
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		sum.Write(text)
	}
	cache, err := filepath.Abs(filepath.Join(integration, ".cache"))
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, fmt.Sprintf("traefik-%x", sum.Sum(nil)[:8]))
	err = buildOnce(ctx, path, func(part string) error {
		fmt.Fprintln(os.Stderr,
			"Building Traefik from the module proxy; the first time this takes some minutes ...")
		return Compile(ctx, []string{"GOFLAGS=", "GOWORK=off"}, module,
			"github.com/traefik/traefik/v3/cmd/traefik", part)
	})
	return path, err
}
