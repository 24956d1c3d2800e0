package harness

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
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

// Object is an object of a configuration file.
type Object = map[string]any

// TraefikProgram returns a Traefik that build builds, such as the function Traefik, with the plugin of the
// repository. integration is the path of the folder integration. The folder of the program has dynamic.yml
// with the dynamic configuration. The static one is static, and what all tests need.
func TraefikProgram(t testing.TB, integration string, build func(ctx context.Context, integration string) (
	string, error), static, dynamic Object, env ...string) Program {
	t.Helper()
	program, err := build(t.Context(), integration)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	LinkPlugin(t, filepath.Join(integration, ".."), filepath.Join(dir, "plugins-local"))
	all := Object{
		"global": Object{"checkNewVersion": false, "sendAnonymousUsage": false},
		"log":    Object{"noColor": true},
		"providers": Object{"providersThrottleDuration": "1ms",
			"file": Object{"filename": filepath.Join(dir, "dynamic.yml"), "watch": true}},
		"experimental": Object{"localPlugins": Object{"pg-ratelimit": Object{"moduleName": ModulePath}}},
	}
	maps.Copy(all, static)
	WriteYAML(t, filepath.Join(dir, "traefik.yml"), all)
	WriteYAML(t, filepath.Join(dir, "dynamic.yml"), dynamic)
	return Program{Name: "traefik", Path: program, Dir: dir, Env: env,
		Args: []string{"--configFile=traefik.yml"}}
}

// WriteYAML creates or replaces a file atomically. PROXY in the content becomes traefik.
func WriteYAML(t testing.TB, path string, content any) {
	t.Helper()
	text, err := json.Marshal(content) // which is YAML
	if err == nil {
		text = bytes.ReplaceAll(text, []byte("PROXY"), []byte("traefik"))
		err = errors.Join(os.WriteFile(path+".new", text, 0o600), os.Rename(path+".new", path))
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

// newestTraefik is the newest version that NewestTraefik can build.
const newestTraefik = "v3.7.13"

// NewestTraefik is like Traefik, but builds Traefik 3.7 from its own module, which replaces others. It leaves
// out the challenges of ACME by DNS, which need a hundred further modules.
func NewestTraefik(ctx context.Context, integration string) (string, error) {
	cache, err := filepath.Abs(filepath.Join(integration, ".cache"))
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "traefik-"+newestTraefik+"-"+runtime.Version())
	err = buildOnce(ctx, path, func(part string) error {
		fmt.Fprintln(os.Stderr,
			"Building Traefik 3.7 from the module proxy; the first time this takes some minutes ...")
		folder := part + ".source"
		defer func() { _ = os.RemoveAll(folder) }()
		if err := copyTraefik(ctx, integration, folder); err != nil {
			return err
		}
		return Compile(ctx, []string{"GOFLAGS=-mod=mod", "GOWORK=off"}, folder, "./cmd/traefik", part)
	})
	return path, err
}

// copyTraefik copies the source of the newest Traefik to a folder, and makes it complete.
func copyTraefik(ctx context.Context, integration, folder string) error {
	var module struct{ Dir string }
	output, err := goCommand(ctx, integration, "mod", "download", "-json",
		"github.com/traefik/traefik/v3@"+newestTraefik).Output()
	if err = errors.Join(err, json.Unmarshal(output, &module)); err != nil {
		return fmt.Errorf("go mod download of Traefik: %w\n%s", err, output)
	}
	if err := errors.Join(os.RemoveAll(folder), os.CopyFS(folder, os.DirFS(module.Dir))); err != nil {
		return err
	}
	// The archive of a module has no modules in its folders.
	extension := filepath.Join(folder, "pkg", "config", "dynamic", "ext")
	acme := filepath.Join(folder, "pkg", "provider", "acme", "provider.go")
	text, err := os.ReadFile(acme)
	text = []byte(strings.NewReplacer("\t\"github.com/go-acme/lego/v5/providers/dns\"\n", "",
		"provider, err = dns.NewDNSChallengeProviderByName(p.DNSChallenge.Provider)",
		`err = errors.New("left out")`).Replace(string(text)))
	return errors.Join(err, os.WriteFile(acme, text, 0o600), os.MkdirAll(extension, 0o755),
		os.WriteFile(filepath.Join(extension, "go.mod"), []byte("module "+
			"github.com/traefik/traefik/dynamic/ext\n"),
			0o600),
		os.WriteFile(filepath.Join(extension, "ext.go"),
			[]byte("package ext\n\ntype HTTP struct{}\n\ntype Router struct{}\n"), 0o600),
		goCommand(ctx, folder, "mod", "edit", "-replace", "github.com/abbot/go-http-auth="+
			"github.com/containous/go-http-auth@v0.4.1-0.20200324110947-a37a7636d23e").Run())
}
