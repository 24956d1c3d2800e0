package imports

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// module is the beginning of the import paths of this module.
const module = "github.com/pgratelimit/pg-ratelimit"

// rule says what a package of this module may import besides the standard library. Its
// tests may import more.
type rule struct {
	dir    string   // its folder
	ours   []string // folders of this module that it may import
	others []string // other modules
	reason string
}

var rules = []rule{
	{
		dir:    "ratelimit",
		reason: "the contract knows neither how hits are counted nor where",
	}, {
		dir: "internal/core/algorithm", ours: []string{"ratelimit"},
		reason: "algorithms are pure functions, which every store uses",
	}, {
		dir: "internal/store/memory", ours: []string{"ratelimit", "internal/core/algorithm", "internal/core/batch"},
		reason: "it is the reference for the other store, so it shares only the algorithms with it, and the form of a settlement",
	}, {
		dir: "ratelimit/memory", ours: []string{"internal/store/memory", "ratelimit"},
		reason: "it is what Go programs see of the store in memory",
	}, {
		dir: "internal/core/batch", ours: []string{"ratelimit"},
		reason: "it collects calls, and a function that it is given decides them",
	}, {
		dir: "internal/core/lease", ours: []string{"ratelimit"},
		reason: "it says what to charge in advance, and a store charges it",
	}, {
		dir:    "internal/core/results",
		reason: "the store, the policy and the history read the rows of every driver",
	}, {
		dir:    "internal/core/sqlstate",
		reason: "the store and both drivers use this list of error codes",
	}, {
		dir: "internal/core/session", ours: []string{"internal/core/results", "ratelimit/pgdb"},
		reason: "both drivers put it before statements, and what runs statements names what it cannot undo",
	}, {
		dir: "internal/core/schema", ours: []string{"internal/core/session"},
		reason: "it is SQL text, which every package may run",
	}, {
		dir:    "ratelimit/pgdb",
		reason: "drivers and their users know each other by it only",
	}, {
		dir: "internal/store/known", ours: []string{"internal/core/algorithm", "internal/core/batch", "internal/core/lease", "ratelimit"},
		reason: "it refuses by what it remembers, and knows neither a database nor the other capabilities of a store",
	}, {
		dir: "internal/store/chain", ours: []string{"internal/core/algorithm", "internal/core/batch", "internal/core/lease", "ratelimit", "ratelimit/pgdb"},
		reason: "it is what the stores of a chain know of each other",
	}, {
		dir: "internal/store/local", ours: []string{"internal/core/algorithm", "internal/core/lease", "internal/store/chain", "internal/store/known", "ratelimit"},
		reason: "it decides without a database, and knows the next store by its interface only",
	}, {
		dir: "internal/store/parts", ours: []string{"internal/core/batch", "internal/core/lease", "internal/core/results", "internal/core/schema", "internal/core/sqlstate", "internal/store/chain", "ratelimit", "ratelimit/pgdb"},
		reason: "it divides calls among stores, which it knows by their interface only",
	}, {
		dir: "internal/store/registry", ours: []string{"internal/core/batch", "internal/core/results", "internal/core/schema", "internal/core/session", "internal/core/sqlstate", "internal/store/chain", "ratelimit/pgdb"},
		reason: "it registers a store of any kind, so it knows only an interface of it",
	}, {
		dir: "internal/store", ours: []string{"internal/store/chain", "internal/store/engine", "internal/store/local", "internal/store/parts", "internal/store/registry", "ratelimit/pgdb"},
		reason: "it puts the stores together",
	}, {
		dir: "internal/store/own", ours: []string{"internal/core/algorithm", "internal/core/batch", "internal/core/lease", "ratelimit", "ratelimit/pgdb"},
		reason: "it is what the engine and the packages with own calls know of each other",
	}, {
		dir: "internal/store/settle", ours: []string{"internal/core/algorithm", "internal/core/batch", "internal/core/lease", "internal/store/own", "ratelimit"},
		reason: "a package with own calls knows the engine by own, and no other such package",
	}, {
		dir: "internal/store/slots", ours: []string{"internal/core/batch", "internal/core/lease", "internal/core/results", "internal/store/own", "ratelimit", "ratelimit/pgdb"},
		reason: "a package with own calls knows the engine by own, and no other such package",
	}, {
		dir: "internal/store/leases", ours: []string{"internal/core/algorithm", "internal/core/batch", "internal/core/lease", "internal/store/own", "ratelimit"},
		reason: "a package with own calls knows the engine by own, and no other such package",
	}, {
		dir: "internal/store/engine", ours: []string{"internal/store/chain", "internal/store/known", "internal/store/leases", "internal/store/own", "internal/store/settle", "internal/store/slots", "internal/core/batch", "internal/core/results", "internal/core/lease", "internal/core/sqlstate", "ratelimit", "internal/core/algorithm", "internal/core/schema", "internal/core/session", "ratelimit/pgdb"},
		reason: "the store knows a driver only as a pgdb.DB, and no proxy",
	}, {
		dir: "ratelimit/postgres", ours: []string{"internal/store", "internal/store/engine", "ratelimit", "ratelimit/pgdb"},
		reason: "it is what Go programs see of the store",
	}, {
		dir: "internal/plane/columns", ours: []string{"ratelimit"},
		reason: "it says what the tables of the policy have, to all that read or write them",
	}, {
		dir: "internal/plane/policy", ours: []string{"internal/plane/columns", "internal/core/batch", "internal/core/results", "internal/core/schema", "internal/core/session", "ratelimit", "ratelimit/pgdb"},
		reason: "decisions about rules are pure functions; what reads the rules knows a database as a pgdb.DB",
	}, {
		dir: "internal/plane/policyfile", ours: []string{"internal/plane/columns", "internal/plane/policy", "ratelimit"}, others: []string{"go.yaml.in/yaml/v3"},
		reason: "it is the form of a file, and knows no database",
	}, {
		dir: "internal/plane/history", ours: []string{"internal/core/batch", "internal/core/results", "internal/core/schema", "internal/core/session", "internal/core/sqlstate", "ratelimit", "ratelimit/pgdb"},
		reason: "it writes what others decided, and knows a database as a pgdb.DB",
	}, {
		dir: "internal/testkit/policytest", ours: []string{"ratelimit", "internal/plane/policy"},
		reason: "it makes rules and requests for tests, compiled and interpreted",
	}, {
		dir: "ratelimit/pgxdb", ours: []string{"internal/core/session", "internal/core/sqlstate", "ratelimit", "ratelimit/pgdb"}, others: []string{"github.com/jackc/pgx/v5"},
		reason: "Go programs use this driver without a proxy",
	}, {
		dir: "internal/proxy/pgwire", ours: []string{"internal/core/results", "internal/core/session", "internal/core/sqlstate", "ratelimit", "ratelimit/pgdb"},
		reason: "this driver exists because pgx cannot be interpreted",
	}, {
		dir: "internal/proxy/edge", ours: []string{"internal/core/batch", "internal/core/lease", "ratelimit", "internal/plane/history", "internal/store/memory", "internal/plane/policy", "ratelimit/pgdb", "internal/store", "internal/store/chain", "internal/store/engine", "internal/store/registry"},
		reason: "it is the same for both proxies, so it knows neither a proxy nor a driver",
	}, {
		dir: "ratelimit/httplimit", ours: []string{"internal/proxy/edge", "ratelimit"},
		reason: "a middleware for Go programs works with any store",
	}, {
		dir: "traefikplugin", ours: []string{"internal/core/batch", "internal/proxy/edge", "internal/core/lease", "internal/proxy/pgwire", "ratelimit", "internal/plane/history", "internal/plane/policy", "ratelimit/pgdb"},
		reason: "an adapter is thin and does not know the other one; pgdb is for the driver's type, batch for the interpreter",
	}, {
		dir: "internal/plane/admin", ours: []string{"internal/plane/columns", "internal/proxy/edge", "ratelimit", "internal/core/algorithm", "internal/plane/history", "ratelimit/pgxdb", "internal/plane/policy", "internal/plane/policyfile", "ratelimit/pgdb", "ratelimit/postgres", "internal/core/schema", "internal/core/session", "internal/core/sqlstate"},
		others: []string{"github.com/jackc/pgx/v5"},
		reason: "it is what administrators do with the database, and knows no proxy; edge is for which headers are secret, algorithm for deciding requests again",
	}, {
		dir: "internal/plane/archive", ours: []string{"ratelimit"},
		others: []string{"github.com/cespare/xxhash/v2", "github.com/jackc/pgx/v5", "github.com/minio/minio-go/v7", "github.com/parquet-go/parquet-go"},
		reason: "it moves rows from a table to files, and knows neither what they mean nor a proxy",
	}, {
		dir: "internal/plane/page", ours: []string{"internal/plane/admin", "internal/plane/history", "internal/plane/policy", "internal/proxy/edge", "internal/store/chain", "ratelimit"},
		others: []string{"github.com/jackc/pgx/v5", "github.com/prometheus/client_golang"},
		reason: "it shows what admin returns, and knows the proxies only from the database; history and policy are for names of decisions and the form of keys, edge and chain for the reports of proxies",
	}, {
		dir: "caddymodule/command", ours: []string{"internal/plane/admin", "internal/plane/archive", "internal/plane/page", "internal/proxy/edge", "ratelimit", "internal/plane/policy", "internal/plane/policyfile"},
		others: []string{"github.com/caddyserver/caddy/v2", "github.com/spf13/cobra", "github.com/spf13/pflag"},
		reason: "it prints what admin and archive return; policy is for the form of keys",
	}, {
		dir: "caddymodule", ours: []string{"caddymodule/command", "internal/core/sqlstate", "internal/proxy/edge", "ratelimit", "internal/plane/admin", "internal/plane/archive", "internal/plane/history", "internal/plane/page", "ratelimit/pgxdb", "internal/plane/policy", "ratelimit/pgdb", "internal/store", "internal/store/chain"},
		// Prometheus: Caddy's registry of metrics has a type of that module.
		others: []string{"github.com/caddyserver/caddy/v2", "go.opentelemetry.io/otel", "go.uber.org/zap", "github.com/prometheus/client_golang"},
		reason: "an adapter is thin and does not know the other one; store and chain are for their figures, and admin and archive for the daily archive",
	}, {
		dir:    "internal/testkit/seed",
		reason: "the tests of all packages choose with it, so it can use none of those packages",
	}, {
		dir:    "internal/testkit/await",
		reason: "the tests of all packages wait with it, so it can use none of those packages",
	}, {
		dir: "internal/testkit/cluster", ours: []string{"internal/testkit/cluster/download", "internal/testkit/cluster/leash", "internal/testkit/install", "internal/testkit/npm"}, others: []string{"github.com/jackc/pgx/v5"},
		reason: "the tests of all packages use its databases, so it can use none of those packages",
	}, {
		dir:    "internal/testkit/cluster/leash",
		reason: "it ends processes of any kind",
	}, {
		dir: "internal/testkit/conformance", ours: []string{"internal/core/session", "internal/testkit/await", "internal/testkit/cluster", "internal/testkit/slownet", "ratelimit", "internal/core/algorithm", "ratelimit/pgdb"},
		others: []string{"pgregory.net/rapid"},
		reason: "the tests of every store and driver run it, so it knows only their interfaces",
	}, {
		dir: "internal/testkit/drivers", ours: []string{"internal/proxy/pgwire", "ratelimit/pgxdb", "ratelimit/pgdb"},
		reason: "it opens the drivers for tests of what is above them",
	}, {
		dir:    "internal/testkit/slownet",
		reason: "it delays any connection",
	}, {
		dir: "internal/testkit/cluster/download", ours: []string{"internal/testkit/npm"},
		reason: "it fetches servers for tests and for the demo",
	}, {
		dir: "internal/testkit/cluster/versions", ours: []string{"internal/testkit/cluster/download"},
		reason: "it runs any command against servers",
	}, {
		dir: "internal/testkit/cluster/shared", ours: []string{"internal/testkit/cluster"},
		reason: "it runs a server for any command",
	}, {
		dir:    "internal/testkit/promtool",
		reason: "it fetches a program that checks files of any kind",
	}, {
		dir:    "internal/testkit/install",
		reason: "it installs packages of any content",
	}, {
		dir: "internal/testkit/npm", ours: []string{"internal/testkit/install"},
		reason: "it fetches packages of any content",
	}, {
		dir: "internal/testkit/citus", ours: []string{"internal/testkit/cluster"}, others: []string{"github.com/jackc/pgx/v5"},
		reason: "it runs servers for tests of any package",
	}, {
		dir: "internal/testkit/harness", ours: []string{"internal/testkit/cluster/leash", "internal/testkit/install"},
		reason: "it runs finished programs and sends requests to them",
	}, {
		dir: "internal/demo", ours: []string{"internal/plane/admin", "internal/testkit/cluster", "internal/testkit/cluster/leash", "ratelimit/pgxdb"}, others: []string{"github.com/jackc/pgx/v5"},
		reason: "it runs the finished programs",
	}, {
		dir:    "internal/testkit/imports",
		reason: "it reads the other packages and uses none",
	},
	{
		dir: "internal/release", ours: []string{"internal/core/schema", "internal/proxy/edge"},
		reason: "it builds the archives of a release, with the SQL in a file",
	},
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

// goList runs `go list` at the root.
func goList(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Standard,Export,Imports,Deps,GoFiles,Module"}, args...)...)
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v: %s", args, err, stderr.String())
	}
	var all []pkg
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestImportsFollowTheRules(t *testing.T) {
	packages := make(map[string]pkg)
	for _, p := range goList(t, "-deps", "./...") {
		packages[p.ImportPath] = p
	}
	seen := make(map[string]bool)
	for _, r := range rules {
		path := module + "/" + r.dir
		p, there := packages[path]
		if !there {
			t.Errorf("%s has a rule and is not a package of this module", r.dir)
			continue
		}
		seen[path] = true
		for _, complaint := range r.check(p, packages) {
			t.Error(complaint)
		}
	}
	for path, p := range packages {
		if p.Module != nil && p.Module.Path == module && !seen[path] {
			t.Errorf("%s has no rule: say in this test what it may import, and why", strings.TrimPrefix(path, module+"/"))
		}
	}
}

// check returns a complaint for each import that breaks the rule. Only direct imports
// matter, because the packages that they lead to have their own rules.
func (r rule) check(p pkg, packages map[string]pkg) []string {
	var complaints []string
	for _, imported := range p.Imports {
		if imported == "C" {
			complaints = append(complaints, r.dir+` imports "C": the programs are built without cgo`)
			continue
		}
		if packages[imported].Standard {
			continue
		}
		if dir, ours := strings.CutPrefix(imported, module+"/"); ours {
			if !slices.Contains(r.ours, dir) {
				complaints = append(complaints, r.dir+" imports "+dir+" and must not: "+r.reason)
			}
			continue
		}
		if !slices.ContainsFunc(r.others, func(other string) bool {
			return imported == other || strings.HasPrefix(imported, other+"/")
		}) {
			complaints = append(complaints, r.dir+" imports "+imported+" and must not: "+r.reason)
		}
	}
	return complaints
}

// interpreted are the folders of the packages that Traefik interprets: the plugin's and
// those that it imports.
func interpreted(t *testing.T) []string {
	var dirs []string
	for _, p := range goList(t, "-deps", "./traefikplugin") {
		if p.Module != nil && p.Module.Path == module {
			dirs = append(dirs, strings.TrimPrefix(p.ImportPath, module+"/"))
		}
	}
	return dirs
}
