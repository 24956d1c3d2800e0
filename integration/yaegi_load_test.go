package integration

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"reflect"
	"strings"
	"testing"

	"github.com/mitchellh/mapstructure"
	"github.com/traefik/paerser/file"
	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"
	"gopkg.in/yaml.v3"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// modulePath is the name of the plugin in Traefik.
const modulePath = harness.ModulePath

// manifest is .traefik.yml.
type manifest struct {
	DisplayName string         `yaml:"displayName"`
	Type        string         `yaml:"type"`
	Runtime     string         `yaml:"runtime"`
	Import      string         `yaml:"import"`
	BasePkg     string         `yaml:"basePkg"`
	Summary     string         `yaml:"summary"`
	IconPath    string         `yaml:"iconPath"`
	TestData    map[string]any `yaml:"testData"`
}

// readManifest reads .traefik.yml as the plugin catalog does: with a YAML library, and its test data with
// Traefik's own configuration parser.
func readManifest(t testing.TB) manifest {
	t.Helper()
	text := readFile(t, "../.traefik.yml")
	var m, parsed manifest
	if err := yaml.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	if err := file.DecodeContent(text, ".yaml", &parsed); err != nil {
		t.Fatal(err)
	}
	m.TestData = parsed.TestData
	return m
}

// plugin is the plugin in a new interpreter.
type plugin struct {
	interpreter       *interp.Interpreter
	new, createConfig reflect.Value
	out, err          *harness.Buffer // what Traefik logs at DEBUG and at ERROR
}

// loadPlugin interprets the plugin as Traefik v3.6 does in pkg/plugins.
func loadPlugin(t testing.TB, env ...string) *plugin {
	t.Helper()
	m := readManifest(t)
	p := &plugin{out: &harness.Buffer{}, err: &harness.Buffer{}}
	dir := t.TempDir()
	harness.LinkPlugin(t, "..", dir)
	p.interpreter = interp.New(interp.Options{GoPath: dir, Env: append(os.Environ(), env...), Stdout: p.out,
		Stderr: p.err})
	if err := p.interpreter.Use(stdlib.Symbols); err != nil {
		t.Fatal(err)
	}
	if _, err := p.interpreter.Eval(fmt.Sprintf("import %q", m.Import)); err != nil {
		t.Fatal(err)
	}
	base := m.BasePkg
	if base == "" {
		base = strings.ReplaceAll(path.Base(m.Import), "-", "_")
	}
	p.new, p.createConfig = p.eval(t, base+".New"), p.eval(t, base+".CreateConfig")
	return p
}

func (p *plugin) eval(t testing.TB, text string) reflect.Value {
	t.Helper()
	v, err := p.interpreter.Eval(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// handler decodes a configuration and creates its middleware, as Traefik does.
func (p *plugin) handler(ctx context.Context, next http.Handler, config map[string]any) (http.Handler,
	error) {
	decoded := p.createConfig.Call(nil)[0]
	decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		DecodeHook: mapstructure.StringToSliceHookFunc(","), WeaklyTypedInput: true,
		Result: decoded.Interface(),
	})
	if err == nil {
		err = decoder.Decode(config)
	}
	if err != nil {
		return nil, err
	}
	results := p.new.Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(next), decoded,
		reflect.ValueOf("api-limit@file")})
	if err := results[1].Interface(); err != nil {
		return nil, err.(error)
	}
	return results[0].Interface().(http.Handler), nil
}

// mustHandler is like handler for a valid configuration. The middleware ends with the test.
func (p *plugin) mustHandler(t testing.TB, next http.Handler, config map[string]any) http.Handler {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	h, err := p.handler(ctx, next, config)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// emptyOK responds with 200 and an empty body.
var emptyOK = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })

// ask sends a request to a handler. headers has pairs of a name and a value.
func ask(h http.Handler, headers ...string) *httptest.ResponseRecorder {
	return askPath(h, "/a/b?q=1", headers...)
}

// askPath is like ask but sends the request to another path.
func askPath(h http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://example.com"+path, nil)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}
