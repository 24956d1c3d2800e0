package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// module is the import path of this module.
const module = "github.com/pgratelimit/pg-ratelimit"

// importRule lists what a package of this module may import besides the standard library. Its tests may
// import more. The comment before each rule gives the reason.
type importRule struct {
	dir    string // the folder of the package
	ours   string // the packages of this module that the package may import: the ends of their paths
	others string // the other modules that the package may import
}

var importRules = []importRule{
	// The public API does not depend on an algorithm or a store.
	{"ratelimit", "", ""},
	// Algorithms are pure functions, which every store uses.
	{"internal/core/algorithm", "ratelimit", ""},
	// The store in memory is the reference for the other store, so the two share only the algorithms and the
	// form of a settlement.
	{"internal/store/memory", "ratelimit algorithm batch", ""},
	// Package memory is the public form of the store in memory.
	{"ratelimit/memory", "store/memory ratelimit", ""},
	// Package batch only collects calls. A batch.Decider of the store decides them.
	{"internal/core/batch", "health lease ratelimit", ""},
	// Package health has the state of a server, for the store and the policy.
	{"internal/core/health", "ratelimit pgdb", ""},
	// Package lease computes the charges for leases, and a store makes them.
	{"internal/core/lease", "algorithm ratelimit", ""},
	// Settings, rules and records share the choices of package option.
	{"internal/core/option", "ratelimit", ""},
	// Every part that shows an outcome uses the words of package outcome, which is below all of them.
	{"internal/core/outcome", "", ""},
	// Drivers and the users of statements share facts about Postgres.
	{"internal/core/pg", "pgdb", ""},
	// Package schema is SQL text, which every package may run, and reads what a database has.
	{"internal/schema", "pg ratelimit pgdb", ""},
	// Package pgdb is the interface between drivers and their users, and depends on neither.
	{"ratelimit/pgdb", "", ""},
	// Stores and proxies use the registry, which uses only a database.
	{"internal/store/registry", "outcome pg schema ratelimit pgdb", ""},
	// Package store divides calls among engines, and decides without them during an outage.
	{"internal/store", "engine registry statement algorithm batch health lease pg schema ratelimit pgdb", ""},
	// The store uses every driver as a pgdb.DB, and imports no proxy.
	{"internal/store/engine",
		"ledger slots statement batch pg lease ratelimit health algorithm schema pgdb", ""},
	// Packages slots and ledger call the engine through functions that they are given.
	{"internal/store/slots", "session statement batch health lease ratelimit pgdb", ""},
	{"internal/store/ledger", "session statement algorithm batch health lease ratelimit pgdb", ""},
	// Package session only keeps a row.
	{"internal/store/session", "statement health pg pgdb", ""},
	// Package statement writes SQL, and runs none.
	{"internal/store/statement", "algorithm pg ratelimit pgdb", ""},
	// Package postgres is the store of Go programs.
	{"ratelimit/postgres", "store engine ratelimit pgdb", ""},
	// Decisions about rules are pure functions. The rules are read over a pgdb.DB.
	{"internal/plane/policy", "option outcome batch health pg schema ratelimit pgdb", ""},
	// Package history writes the decisions of proxies over a pgdb.DB.
	{"internal/plane/history", "option outcome batch pg schema ratelimit pgdb", ""},
	// Go programs use this driver without a proxy.
	{"ratelimit/pgxdb", "pg ratelimit pgdb", "github.com/jackc/pgx/v5"},
	// This driver exists because pgx cannot be interpreted.
	{"internal/proxy/pgwire", "pg ratelimit pgdb", ""},
	// Package respond writes responses for both proxies. It imports policy for the type policy.Reason, and
	// pgdb for pgdb.DB, from which it reads the salt.
	{"internal/proxy/respond", "option outcome policy settings ratelimit pgdb", ""},
	// Package settings reads the settings of both proxies.
	{"internal/proxy/settings", "option ratelimit", ""},
	// Package usage reads bodies into the parts of package option, and needs nothing else.
	{"internal/proxy/usage", "option", ""},
	// Both proxies share the databases that it opens, so package host imports no proxy and no request.
	{"internal/proxy/host", "health settings respond ratelimit history policy pgdb store engine registry " +
		"store/memory", ""},
	// The steps of a request are the same in both proxies, so package serve imports no proxy and no driver.
	{"internal/proxy/serve", "health option outcome settings host respond usage batch ratelimit history " +
		"policy store registry", ""},
	// A middleware for Go programs works with any store.
	{"ratelimit/httplimit", "serve respond settings ratelimit", ""},
	// An adapter is thin and does not import the other one. The plugin imports pgdb for
	// the type pgdb.DB, and batch for batch.Call and batch.DigestPrefix.
	{"traefikplugin", "batch option host serve respond lease settings pgwire ratelimit history policy pgdb " +
		"store", ""},
	// Package explain decides as proxies do, and imports none. It imports option to recognize headers with
	// secrets, algorithm for algorithm.Decide, which decides recorded requests again, and asks the counters
	// what running requests hold.
	{"admin/explain", "option outcome ratelimit algorithm pg pgdb pgxdb policy postgres",
		"github.com/jackc/pgx/v5"},
	// Package migrate runs SQL text, and imports nothing that uses the tables.
	{"admin/migrate", "schema", "github.com/jackc/pgx/v5"},
	// Package archive moves rows from a table to files, and does not interpret them.
	{"admin/archive", "ratelimit",
		"github.com/jackc/pgx/v5 github.com/minio/minio-go/v7 github.com/parquet-go/parquet-go"},
	// Package page finds the proxies in the database. It imports policy for policy.KeyPrefix, and pgxdb to
	// read a DSN as proxies do.
	{"admin/page", "policy pg pgdb pgxdb ratelimit",
		"github.com/jackc/pgx/v5 github.com/prometheus/client_golang"},
	// Package command prints the rows of SQL, and what other packages of admin return. It runs without Caddy.
	{"admin/command",
		"archive batch explain migrate history option page host outcome ratelimit policy pgxdb schema " +
			"settings pg",
		"github.com/jackc/pgx/v5 github.com/spf13/cobra github.com/spf13/pflag go.yaml.in/yaml/v3"},
	// Package admin adds the commands and the page to a Caddy.
	{"admin", "command admin/page caddymodule host settings ratelimit",
		"github.com/caddyserver/caddy/v2 github.com/spf13/cobra"},
	// The program has the commands alone.
	{"admin/cmd/pg-ratelimit", "command host ratelimit", "github.com/spf13/cobra"},
	// An adapter is thin and does not import the other one. The module imports store and engine for the type
	// engine.Stats, Prometheus for prometheus.Collector, and cobra for the hook of the commands.
	{"caddymodule", "option outcome settings pg host serve respond ratelimit history pgxdb policy pgdb " +
		"store engine", "github.com/caddyserver/caddy/v2 go.opentelemetry.io/otel go.uber.org/zap " +
		"github.com/prometheus/client_golang github.com/spf13/cobra"},
	// The demo runs the finished programs.
	{"internal/demo", "migrate policy cluster leash pgxdb", "github.com/jackc/pgx/v5"},
	// Package release builds the archives of a release, with the SQL in a file.
	{"internal/release", "schema host", ""},
}

// pkg is the output of `go list -json` about a package.
type pkg struct {
	ImportPath string
	Standard   bool
	Export     string
	Imports    []string
	Deps       []string
	GoFiles    []string
	Module     *struct{ Path string }
}

// root is the folder of go.mod, relative to this package.
const root = "../../.."

// readFile returns the text of a file. The path is relative to root.
func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// packages lists all packages of this module and of its dependencies, by path.
var packages = sync.OnceValues(func() (map[string]pkg, error) { return goList("-deps", "./...") })

// compiled lists the packages of which tests check types, and their dependencies, with export data.
var compiled = sync.OnceValues(func() (map[string]pkg, error) {
	args := []string{"-export", "-deps", "./internal/store/..."}
	for _, dir := range slices.Concat(public, Interpreted) {
		args = append(args, "./"+dir)
	}
	return goList(args...)
})

// goList runs `go list` at the root.
func goList(args ...string) (map[string]pkg, error) {
	cmd := exec.Command("go",
		append([]string{"list", "-json=ImportPath,Standard,Export,Imports,Deps,GoFiles,Module"}, args...)...)
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %v: %w", args, err)
	}
	listed := make(map[string]pkg)
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return listed, nil
		} else if err != nil {
			return nil, err
		}
		listed[p.ImportPath] = p
	}
}

// listed returns a list from above, and fails the test if there is none.
func listed(t *testing.T, list func() (map[string]pkg, error)) map[string]pkg {
	t.Helper()
	packages, err := list()
	if err != nil {
		t.Fatal(err)
	}
	return packages
}

// importerOf reads the types of imported packages from their export data.
func importerOf(fset *token.FileSet, exported map[string]pkg) types.Importer {
	return importer.ForCompiler(fset, "gc",
		func(path string) (io.ReadCloser, error) { return os.Open(exported[path].Export) })
}

// Each package outside the testkit has a rule, and imports only what its rule permits.
func TestImportsFollowTheRules(t *testing.T) {
	packages := listed(t, packages)
	seen := make(map[string]bool)
	for _, r := range importRules {
		path := module + "/" + r.dir
		p, ok := packages[path]
		if !ok {
			t.Errorf("%s has a rule and is not a package of this module", r.dir)
			continue
		}
		seen[path] = true
		for _, complaint := range r.check(p, packages) {
			t.Error(complaint)
		}
	}
	for path, p := range packages {
		// The packages of the testkit need no rule, because other packages import them only if their own
		// rules permit it.
		// A folder without code has SQL and tests.
		if p.Module != nil && p.Module.Path == module && len(p.GoFiles) > 0 && !seen[path] &&
			!strings.HasPrefix(path, module+"/internal/testkit/") {
			t.Errorf("%s has no rule: list in this test what it may import, and why",
				strings.TrimPrefix(path, module+"/"))
		}
	}
}

// check returns a complaint for each import that breaks the rule. Only direct imports
// matter, because the packages that they lead to have their own rules.
func (r importRule) check(p pkg, packages map[string]pkg) (complaints []string) {
	ours, others := strings.Fields(r.ours), strings.Fields(r.others)
	for _, path := range p.Imports {
		dir, own := strings.CutPrefix(path, module+"/")
		allowed := packages[path].Standard && path != "C" // the programs are built without cgo
		if own {
			allowed = slices.ContainsFunc(ours,
				func(end string) bool { return strings.HasSuffix("/"+dir, "/"+end) })
		}
		allowed = allowed || slices.ContainsFunc(others,
			func(other string) bool { return path == other || strings.HasPrefix(path, other+"/") })
		if !allowed {
			complaints = append(complaints, r.dir+" imports "+path+" and must not")
		}
	}
	return complaints
}

// Interpreted lists exactly the packages that Traefik interprets: the plugin and those that it imports.
func TestInterpretedPackagesAreListed(t *testing.T) {
	packages := listed(t, packages)
	got := []string{"traefikplugin"}
	for _, path := range packages[module+"/traefikplugin"].Deps {
		if p := packages[path]; p.Module != nil && p.Module.Path == module {
			got = append(got, strings.TrimPrefix(path, module+"/"))
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, slices.Sorted(slices.Values(Interpreted))) {
		t.Errorf("traefikplugin imports %q, want the packages of Interpreted", got)
	}
}
