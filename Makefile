# Works with GNU make from 3.81 on, which is macOS's.

GO ?= go
PORT ?= 8080
FUZZTIME ?= 60s
BENCHFLAGS ?=

GOLANGCI_LINT_VERSION = 2.15.0

# Commands that more than one target runs, each in the folder of a module.
# What is not on the machine is only looked for when a target needs it.

# The race detector needs cgo and a C compiler.
RACE = $(shell [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v $$($(GO) env CC | cut -d' ' -f1) >/dev/null && echo -race)

# A linter that another Go has built, an older one, refuses this module.
LINT = $(shell for l in golangci-lint "$$($(GO) env GOPATH)/bin/golangci-lint"; do \
	"$$l" version 2>/dev/null | grep -q "version v*$(GOLANGCI_LINT_VERSION) built with $$($(GO) env GOVERSION | cut -d. -f1,2)" && echo "$$l" && exit; done; \
	echo $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_LINT_VERSION))

# A program tells which commit it is of, unless git will not tell.
VCS = $(shell git rev-parse HEAD >/dev/null 2>&1 || echo -buildvcs=false)

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | while IFS='	' read -r target text; do \
		printf '  make %-22s %s\n' "$$target" "$$text"; done

.PHONY: build
build: ## build Caddy with pg_ratelimit: bin/caddy
	CGO_ENABLED=0 $(GO) build -trimpath $(VCS) -o bin/caddy ./xcaddy

# The demo takes make's place in the shell, so that a signal to make reaches it.
.PHONY: run
run: ## run Postgres, an upstream and Caddy on :8080 (PORT=8081: there; DATABASE_URL: on that database)
	@[ -x bin/caddy ] || echo 'Building Caddy; the first time this takes some minutes ...'
	@CGO_ENABLED=0 $(GO) build -trimpath $(VCS) -o bin/caddy ./xcaddy
	@CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -o bin/demo ./internal/demo
	@exec bin/demo -with-parent -port '$(PORT)'

# Allocations are counted again without the race detector, which allocates, too.
.PHONY: test
test: ## run all tests, on a Postgres that is found or installed (PG_RATELIMIT_TEST_DSN: on that one)
	@[ -n '$(RACE)' ] || echo 'Without a C compiler, or with CGO_ENABLED=0, the race detector is off.'
	$(GO) test $(RACE) -timeout 30m ./...
	$(GO) test -run '^TestAllocations$$' ./ratelimit ./caddymodule
	@if [ -f integration/go.mod ]; then set -x; cd integration && $(GO) test $(RACE) -count=1 -timeout 40m ./...; fi

# Three tests of connections take their time and ask nothing of the version.
.PHONY: test-postgres-versions
test-postgres-versions: ## run the tests of the core on Postgres 14 to 18, whose binaries npm fetches once into .cache
	$(GO) run ./internal/cluster/versions -- $(GO) test -short -count=1 -timeout 10m -skip '^(TestRestart|TestBlackHole|TestDroppedPackets)$$' \
		$(patsubst %,./%/...,$(wildcard ratelimit internal/pgwire internal/conformance))

.PHONY: lint
lint: ## run go vet and golangci-lint
	$(GO) vet ./...
	$(LINT) run
	@if [ -f integration/go.mod ]; then set -x; cd integration && $(GO) vet ./... && $(LINT) run; fi

.PHONY: cover
cover: ## tell what the tests cover, of ratelimit and of all: cover.out
	$(GO) test -timeout 30m -cover ./ratelimit
	$(GO) test -timeout 30m -coverpkg=./... -coverprofile=cover.out ./...
	$(GO) tool cover -func=cover.out | tail -n 1

.PHONY: fuzz
fuzz: ## run each fuzz test for FUZZTIME, 60s
	@grep -rlE --include='*_test.go' '^func Fuzz' . | grep -v '^./integration/' | while read -r file; do \
		for test in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$$file"); do \
			echo "$$(dirname "$$file") $$test"; \
			$(GO) test -run '^$$' -fuzz "^$$test\$$" -fuzztime '$(FUZZTIME)' "$$(dirname "$$file")" </dev/null || exit 1; \
		done; done

.PHONY: bench
bench: ## measure against no limiter: tables, and docs/benchmark.svg (BENCHFLAGS='-only plain -rounds 3')
	cd integration && $(GO) run ./bench $(BENCHFLAGS)

.PHONY: fmt-check
fmt-check: ## fail where gofmt would change a file
	@out="$$("$$($(GO) env GOROOT)/bin/gofmt" -l .)"; [ -z "$$out" ] || { echo "gofmt -w $$out"; exit 1; }

.PHONY: tidy-check
tidy-check: ## fail where go mod tidy would change go.mod or go.sum
	$(GO) mod tidy -diff
	@if [ -f integration/go.mod ]; then set -x; cd integration && $(GO) mod tidy -diff; fi

.PHONY: clean
clean: ## remove what the targets have made: bin, .run, .cache, cover.out
	@[ ! -f .run/postgres.elsewhere ] || { set -x; rm -rf "$$(cat .run/postgres.elsewhere)"; }
	rm -rf bin .run .cache cover.out
