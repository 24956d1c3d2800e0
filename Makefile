# Works with GNU make 3.81 (the version on macOS) and later.

GO ?= go
PORT ?= 8080
FUZZTIME ?= 60s
BENCHFLAGS ?=
BEFORE ?=
VERSIONS ?=
SEEDS ?= 10000
DURATION ?= 10m
SEED ?=
ROWS ?=

GOLANGCI_LINT_VERSION = 2.15.0

# Commands that several targets use. These variables are expanded only when a
# target uses them.

# The race detector needs cgo and a C compiler.
RACE = $(shell [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v $$($(GO) env CC | cut -d' ' -f1) >/dev/null && echo -race)

# A linter that was built with an older Go refuses this module.
LINT = $(shell for l in golangci-lint "$$($(GO) env GOPATH)/bin/golangci-lint"; do \
	"$$l" version 2>/dev/null | grep -q "version v*$(GOLANGCI_LINT_VERSION) built with $$($(GO) env GOVERSION | cut -d. -f1,2)" && echo "$$l" && exit; done; \
	echo $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_LINT_VERSION))

# A program contains its commit, if git can tell it.
VCS = $(shell git rev-parse HEAD >/dev/null 2>&1 || echo -buildvcs=false)

# Caddy is compiled with the flags of the xcaddy command. xcaddy is a module of
# its own, see there.
IN_XCADDY = cd xcaddy && exec env CGO_ENABLED=0 $(GO)
CADDY_FLAGS = -trimpath $(VCS) -ldflags "-s -w" -tags nobadger,nomysql,nopgx

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z.-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | while IFS='	' read -r target text; do \
		printf '  make %-22s %s\n' "$$target" "$$text"; done

# All targets that use Go depend on this one. An older Go than 1.21 cannot get
# the version that go.mod names by itself.
GO_VERSION = $(shell sed -n 's/^go //p' xcaddy/go.mod)

.PHONY: need-go
need-go:
	@command -v $(GO) >/dev/null 2>&1 || { \
		echo 'Go is not installed. Install Go $(GO_VERSION) or later, from https://go.dev/dl/ or with a package of this system.' >&2; exit 1; }
	@version=$$(GOTOOLCHAIN=local $(GO) version | cut -d' ' -f3); case $$version in \
		go1.[0-9]|go1.[0-9].*|go1.1[0-9]|go1.1[0-9].*|go1.20|go1.20.*) \
			echo "The installed Go is $$version. Install Go $(GO_VERSION) or later, from https://go.dev/dl/" >&2; exit 1;; esac

.PHONY: build
build: need-go ## build Caddy with pg_ratelimit, as xcaddy does: bin/caddy
	@[ -x bin/caddy ] || echo 'Building Caddy; the first time this takes some minutes ...'
	$(IN_XCADDY) build $(CADDY_FLAGS) -o ../bin/caddy .

# exec: the demo replaces the shell, so that a signal to make reaches the demo.
.PHONY: run
run: need-go ## run Postgres, an upstream and Caddy on port 8080 (PORT: another port; DATABASE_URL: another database; CITUS: the source of Citus, to see a Caddy and a Traefik share a limit on it)
ifneq ($(CITUS),)
	@$(call CITUS_BIN,$(CITUS)); cd integration && exec $(GO) test -count=1 -v -timeout 15m -run '^TestACaddyAndATraefikShareALimitOnCitus$$' . -args -citus "$$bin"
else
	@[ -x bin/demo ] || echo 'Building the program that runs the demo; the first time this takes up to a minute ...'
	@CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -o bin/demo ./internal/demo
	@exec bin/demo -port '$(PORT)' -build '$(IN_XCADDY) build $(CADDY_FLAGS) -o ../bin/caddy .'
endif

# The tests of all packages run with the newest Caddy, in xcaddy, which is compiled once for them and for the
# programs. go list compiles everything except for the programs of the tests, which go test always links anew.
QUICK = cd xcaddy && export CGO_ENABLED=0 GOFLAGS="$$GOFLAGS -trimpath" &&
MODULE = github.com/pgratelimit/pg-ratelimit
TAGS = nobadger,nomysql,nopgx
COMPILE = $(GO) list -test -export -deps -tags $(TAGS) -f '{{""}}'
PACKAGES = $(patsubst %,$(MODULE)/%,$(patsubst ./%,%,$(or $(PKG),...)))
PKG ?=

.PHONY: test test-compile test-packages
test: need-go ## run the short tests of all packages on one Postgres, and of real programs (PKG=internal/plane/policy: only its tests; PG_RATELIMIT_TEST_DSN: another server)
	@.ci/steps 'compile' '$(AGAIN) test-compile' 'tests' '$(AGAIN) test-packages'

.PHONY: test-core
test-core: need-go ## run the short tests of the limiter alone, without the commands, the page and real programs
	@$(AGAIN) test PKG='caddymodule/... internal/... ratelimit/... traefikplugin/...'

test-compile:
	@$(QUICK) $(COMPILE) $(PACKAGES) $(MODULE)/internal/testkit/cluster/shared$(if $(PKG),, && cd ../integration && $(COMPILE) .)

test-packages:
	@$(QUICK) $(GO) run -tags $(TAGS) $(MODULE)/internal/testkit/cluster/shared -- ../.ci/steps \
		'packages' '$(GO) test -short -vet=off -p 4 -timeout 20m -tags $(TAGS) $(PACKAGES)' \
		$(if $(PKG),,'real programs' 'cd ../integration && $(GO) test -short -vet=off -timeout 20m -count=1 -run "^TestSmoke$$" .')

# The tests that make test leaves out. Those on a Citus need the archive of its source.
.PHONY: test-all
test-all: need-go ## run all other tests: long ones, with the race detector and the oldest Caddy, real proxies, faults, fuzz tests, other versions of Postgres, and Citus (CITUS_SOURCE)
	@[ -n '$(RACE)' ] || echo 'Without a C compiler, or with CGO_ENABLED=0, the race detector is off.'
	@[ -n '$(CITUS_SOURCE)' ] || echo 'Without CITUS_SOURCE, the archive of its source, nothing is tested on Citus.'
	@.ci/steps 'race detector' '$(AGAIN) test-race' 'long tests' '$(AGAIN) test-long' \
		'integration' '$(AGAIN) test-integration' 'other modules' '$(AGAIN) test-modules' \
		'fuzz tests' '$(AGAIN) fuzz FUZZTIME=2s' 'soak' '$(AGAIN) soak DURATION=60s SEED=1' \
		'other versions of Postgres' '$(AGAIN) test-postgres-versions VERSIONS=$(OTHER_VERSIONS)' \
		$(if $(CITUS_SOURCE),'Citus' '$(AGAIN) test-citus')
AGAIN = $(MAKE) --no-print-directory

# The oldest and the newest version of Postgres, without Debian's, on which the steps before ran.
OTHER_VERSIONS = $(shell case $$(ls /usr/lib/postgresql 2>/dev/null | sort -n | tail -n 1) in (15) echo 18;; (18) echo 15;; (*) echo 15,18;; esac)

# In these packages goroutines share memory. make test has run all tests that are left out here.
RACED = ratelimit/... internal/core/batch internal/core/health internal/store/... internal/plane/history \
	internal/plane/policy internal/proxy/host internal/proxy/pgwire internal/proxy/respond internal/proxy/serve \
	internal/testkit/conformance caddymodule traefikplugin

# The tests that make test leaves out, or shortens, ask testing.Short.
LONG = $(shell grep -rl --include='*_test.go' 'testing\.Short()' admin caddymodule internal ratelimit traefikplugin)
LONG_TESTS = $(shell awk 'FNR == 1 {test = ""} /^func Test/ {split($$2, name, /[^A-Za-z0-9_]/); test = name[1]} \
	/testing\.Short\(\)/ && test {print test}' $(LONG) | sort -u | tr '\n' '|')
LONG_PACKAGES = $(sort $(dir $(LONG)) internal/testkit/conformance/)

# The tests of integration need servers of their own.
SHARED = $(GO) run ./internal/testkit/cluster/shared --
.PHONY: test-race test-long test-integration test-modules
test-race: need-go
	$(SHARED) $(GO) test $(RACE) -short -vet=off -timeout 30m -skip '$(IN_ONE_GOROUTINE)' $(RACED:%=./%)

# These tests compare decisions with models, one by one, or wait.
IN_ONE_GOROUTINE = Naive|SQLAndGo|InSQLAndGo|IsSequential|AllOrNothing|PlansUse|ExplainEquals|ClientCannot|DroppedPackets|Sums|HaveAllValues

test-long: need-go
	@$(QUICK) set -x; $(GO) run -tags $(TAGS) $(MODULE)/internal/testkit/cluster/shared -- $(GO) test -vet=off -p 4 -timeout 30m \
		-tags $(TAGS) -run '^($(LONG_TESTS)Test[a-zA-Z]*Conformance)$$' $(LONG_PACKAGES:%/=$(MODULE)/%)

test-integration: need-go
	cd integration && $(GO) test -vet=off -count=1 -timeout 40m -skip '^TestSmoke$$' ./...

# The tests of deploy also build Caddy with xcaddy, from a clone and from a module proxy, and the archive of this platform twice.
test-modules: need-go
	cd bench && $(GO) test -vet=off $(RACE) ./...
	cd deploy && $(GO) test -vet=off -count=1 -timeout 60m -tags release .

.PHONY: schema.sql
schema.sql: need-go ## print the SQL that makes and upgrades the tables, and write it to schema.sql
	@sql="$$($(GO) run ./internal/release -schema)" && printf '%s\n' "$$sql" | tee $@

.PHONY: test-postgres-versions
test-postgres-versions: need-go ## run the short tests of the core on Postgres 15 to 18 (npm downloads the servers once, to .cache; VERSIONS=15,18: only those)
	@$(QUICK) set -x; $(GO) run -tags $(TAGS) $(MODULE)/internal/testkit/cluster/versions -only '$(VERSIONS)' -at-once 2 -- \
		$(GO) run -tags $(TAGS) $(MODULE)/internal/testkit/cluster/shared -- sh -c '$(VERSIONED) $(VERSIONED_PACKAGES) && \
		$(VERSIONED) -run "$(VERSIONED_TESTS)" $(MODULE)/internal/store/engine'

# Of the store, these tests depend on what a server makes of the SQL. One driver suffices.
VERSIONED = $(GO) test -short -vet=off -count=1 -timeout 20m -tags $(TAGS) -skip "Naive|ClientCannot|ExplainEquals"
VERSIONED_PACKAGES = $(patsubst %,$(MODULE)/%,internal/store internal/schema/... admin/explain internal/plane/history internal/plane/policy \
	internal/testkit/conformance)
VERSIONED_TESTS = SQL|Go|Plan|Batch|Several|Settle|Stores|Cleanup|Migrat|Table|Column|Commit|Refus|RoundTrip

# The tests keep their databases in memory, where the machine has a folder for that and TMPDIR
# is not set. These databases are too large.
ON_DISK = TMPDIR="$${TMPDIR:-/tmp}"

# versitygw is a server for S3.
.PHONY: test-archive
test-archive: need-go ## archive 5,000,000 rows of the audit log and of the ledger, to a folder and to S3, killed ten times on the way
	GOBIN='$(CURDIR)/integration/.cache/bin' $(GO) install github.com/versity/versitygw/cmd/versitygw@v1.8.0
	cd integration && $(ON_DISK) $(GO) test -count=1 -v -timeout 60m -run '^(TestDuckDBReadsTheArchive|TestAnArchiveThatIsKilledLosesNothing)$$' . \
		-archive-rows 5000000 -archive-gateway '$(CURDIR)/integration/.cache/bin/versitygw'
	$(ON_DISK) $(GO) test -count=1 -v -timeout 60m -run '^TestLedgerOfFourHundredDays$$' ./admin/archive -year-rows 330000

# The tests on a Citus need its source. It is built once, into /var/tmp (CITUS_CACHE).
CITUS_SOURCE ?=
CITUS ?=
CITUS_LOAD ?= 10s
CITUS_BIN = bin=$$(internal/testkit/citus/build.sh '$(1)') || exit 1

.PHONY: test-citus
test-citus: need-go ## run the tests of counters on Citus (CITUS_SOURCE: the archive of its source; CITUS_LOAD: how long the chaos lasts)
	$(call CITUS_BIN,$(CITUS_SOURCE)); set -x; $(GO) test -count=1 -v -timeout 30m -run '^TestCitus' ./internal/store/engine -args -citus "$$bin" -citus-load '$(CITUS_LOAD)' \
		&& cd integration && $(GO) test -count=1 -v -timeout 15m -run OnCitus . -args -citus "$$bin"

.PHONY: lint
lint: need-go ## run go vet, golangci-lint and the tests of the language
	$(GO) vet ./...
	$(LINT) run
	$(GO) test -vet=off -run 'English|LinesOf|Words|InterpretedPackagesUse' ./internal/testkit/imports
	cd xcaddy && $(GO) vet ./...
	@if [ -f bench/caddy/go.mod ]; then set -x; cd bench/caddy && $(GO) vet ./...; fi
	@for m in integration bench deploy; do [ ! -f $$m/go.mod ] || (set -x; cd $$m && $(GO) vet ./... && $(LINT) run) || exit 1; done

.PHONY: cover
cover: need-go ## print the test coverage of ratelimit and of everything, and write cover.out
	$(GO) test -timeout 30m -cover ./ratelimit/... ./internal/core/...
	$(GO) test -timeout 30m -coverpkg=./... -coverprofile=cover.out ./...
	$(GO) tool cover -func=cover.out | tail -n 1

# Two fuzz tests run at a time, with one process each for their inputs. Before Go 1.27, a fuzz test on a
# busy machine can fail at the end of its time with only "context deadline exceeded" (go.dev/issue/75804): no fault is found then.
.PHONY: fuzz
fuzz: need-go ## run each fuzz test for 60s (FUZZTIME: another time)
	@grep -rE --include='*_test.go' '^func Fuzz' . | sed 's|^\(.*\)/[^/]*:func \(Fuzz[A-Za-z0-9_]*\).*|\1 \2|' | sort | xargs -n 2 -P 2 sh -c ' \
		out=$$($(GO) test -v -run "^\$$" "$$0" "-fuzz=^$$1\$$" -fuzztime=$(FUZZTIME) -parallel=1 2>&1) || \
			{ echo "$$out" | grep -qx "    context deadline exceeded" && ! echo "$$out" | grep -q "Failing input written"; } && \
			echo "$$0 $$1: $$(echo "$$out" | grep "^fuzz: elapsed" | tail -n 1)" || { echo "$$0 $$1:"; echo "$$out"; exit 1; }'

# Only the modules that users build. The command asks https://vuln.go.dev.
GOVULNCHECK = $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.8.0

.PHONY: vuln
vuln: need-go ## look for known vulnerabilities that the code reaches (asks vuln.go.dev)
	$(GOVULNCHECK) ./...
	cd xcaddy && $(GOVULNCHECK) .

.PHONY: bench
bench: need-go ## measure the CPU of limits: print tables, write docs/generated/benchmark.md and docs/benchmark.svg (BENCHFLAGS='-only exact'; BEFORE=<commit>: compare with it)
	mkdir -p .cache && cd bench && $(GO) build -o ../.cache/bench . && exec ../.cache/bench $(if $(BEFORE),-before '$(BEFORE)') $(or $(BENCHFLAGS),$(if $(BEFORE),,-docs ../docs))

.PHONY: test-rules
test-rules: need-go ## compare what 10,000 rules decide for 1,000,000 requests with a plain loop over them
	$(GO) test -count=1 -v -timeout 60m -run '^TestManyRulesEqualNaiveLoop$$' ./internal/plane/policy -rules 10000 -requests 1000000

.PHONY: test-upgrade
test-upgrade: need-go ## upgrade tables of each numbered version, and run programs of the first beside a later one (needs the history)
	cd integration && $(GO) test -count=1 -v -timeout 30m -run '^(TestTwoVersionsCountTogether|TestTablesOfEachVersionAreUpgraded)$$' .

.PHONY: test-budgets
test-budgets: need-go ## compare budgets in money with what models charged for 1,000,000 requests, through kills and a failover
	cd integration && $(ON_DISK) $(GO) test -count=1 -v -timeout 6h -run '^TestBudgetsInMoneyAreExact$$' . -budget-requests 1000000

.PHONY: test-restore
test-restore: need-go ## restore a backup of 100,000 users into the live database, five times in each of three ways
	cd integration && $(GO) test -count=1 -v -timeout 30m -run '^TestABackupIsRestoredUnderLoad$$' . -restore-users 100000 -restore-rounds 5

.PHONY: mutations
mutations: need-go ## change the code in one place at a time, and see the named test fail (ROWS: a regular expression)
	$(SHARED) $(GO) run ./internal/testkit/mutations '$(ROWS)'

.PHONY: simulate
simulate: need-go ## run 10,000 seeds of the simulation, in virtual time (SEEDS: another number; SEED: the first one)
	$(GO) test -count=1 -timeout 24h -run '^TestSimulation' ./internal/store/engine -simulate-seeds '$(SEEDS)' $(if $(SEED),-simulate-first $(SEED))

.PHONY: rehearse
rehearse: need-go ## run the commands of docs/servers.md under load: restores, failovers, TLS, an upgrade of Postgres
	GOBIN='$(CURDIR)/integration/.cache/bin' $(GO) install github.com/versity/versitygw/cmd/versitygw@v1.8.0
	cd integration && $(GO) test -count=1 -v -timeout 20m -tags rehearse -run '^TestRehearsal$$' . -archive-gateway '$(CURDIR)/integration/.cache/bin/versitygw'

.PHONY: soak
soak: need-go ## run two Caddies and a Traefik for ten minutes, with a fault every 20 seconds (DURATION: another time; SEED: the faults of an earlier run)
	cd integration && $(GO) test -count=1 -v -timeout 0 -tags soak -run '^TestSoak' . -soak-duration '$(DURATION)' $(if $(SEED),-soak-seed $(SEED))

# TestManifestSatisfiesCatalog checks .traefik.yml as the catalog of plugins does. The tests of docs and deploy look at links, commands, files
# and versions, and those of make test at generated files. The workflow of a release runs this after make test-all.
.PHONY: release
release: fmt-check tidy-check test ## check what a release needs, and build its archives: bin/release
	cd integration && $(GO) test -vet=off -count=1 -timeout 20m -run '^(TestManifestSatisfiesCatalog|TestLicensesOfDependencies)$$' . && $(GO) test -vet=off -count=1 -timeout 20m ./docs
	cd deploy && $(GO) test -vet=off -count=1 -timeout 60m -tags release .
	$(GO) run ./internal/release -out bin/release

.PHONY: fmt-check
fmt-check: need-go ## fail if gofmt would change a file
	@out="$$("$$($(GO) env GOROOT)/bin/gofmt" -l .)"; [ -z "$$out" ] || { echo "gofmt -w $$out"; exit 1; }

.PHONY: tidy-check
tidy-check: need-go ## fail if go mod tidy would change go.mod or go.sum
	$(GO) mod tidy -diff
	cd xcaddy && $(GO) mod tidy -diff
	@for m in integration bench bench/caddy deploy; do [ ! -f $$m/go.mod ] || (set -x; cd $$m && $(GO) mod tidy -diff) || exit 1; done

.PHONY: clean
clean: ## remove what the targets created: bin, .run, .cache, cover.out, schema.sql
	@[ ! -f .run/postgres.elsewhere ] || { set -x; rm -rf "$$(cat .run/postgres.elsewhere)"; }
	rm -rf bin .run .cache */.cache cover.out schema.sql
