# make test does its own set-up; everything else works from a fresh clone with Go alone.

GO       ?= go
BENCH    ?= .
FUZZTIME ?= 30s
PKG      ?= ./...

# The go command stamps the version from git, but fails where git distrusts the clone (another owner).
STAMP    := $(if $(shell git rev-parse HEAD 2>/dev/null),,-buildvcs=false)

# What the tests install goes here (git-ignored).
export MOONCAKE_CACHE ?= $(CURDIR)/.cache

.DEFAULT_GOAL := help
.PHONY: help run build plugins setup-plugins test test-plugins test-interop test-soak test-rdma bench-rdma setup-store test-quick setup lint bench bench-store bench-kv bench-wasm bench-go fuzz generate proto clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: build ## build and start a whole Store on loopback: master, metadata, memory
	env -u MOONCAKE_CACHE bin/mooncake up --config configs/mooncake.json --hints

# mooncake loads the RDMA library at run time and needs glibc; mooncake-static has no RDMA and needs nothing.
build: ## build bin/mooncake, and bin/mooncake-static for hosts without glibc
	CGO_ENABLED=0 $(GO) build $(STAMP) -trimpath -ldflags '-s -w' -o bin/mooncake ./cmd/mooncake
	CGO_ENABLED=0 $(GO) build $(STAMP) -trimpath -tags noverbs -ldflags '-s -w' -o bin/mooncake-static ./cmd/mooncake

plugins: setup-plugins ## build the example eviction policies into bin/plugins/*.wasm
	@GO='$(GO)' scripts/plugins.sh bin/plugins

setup-plugins: ## install the compilers for eviction policies in C, Rust, AssemblyScript and WebAssembly text
	@scripts/setup-plugins.sh

setup: ## install what the tests need (services, the real wheel); quick when it is all there
	@scripts/setup.sh

# Packages run under the race detector; test/... drives other processes, where it finds nothing. Some tests count
# memory or allocations, which the race detector changes, or are too long for it.
NORACE := TestMemoryPerKey|TestStoreReachesTheSimulator|TestSteadyTransfersAllocateNothing|TestAdaptiveIsNeverFarBelowLRU|TestUpstream|TestReferenceFigures|TestGoals|TestMinIsNeverBeaten

# The suites of each kind through the boundary of a process start hundreds of processes: make test-plugins runs them.
PROXIES := \(backend\|policy\|transport\)

test: setup ## set up, vet, build and run all tests
	$(GO) vet ./...
	CGO_ENABLED=0 $(GO) build $(STAMP) ./...
	$(GO) run ./scripts/gotest -race -timeout 10m $$($(GO) list ./... | grep -v -e '/test/' -e '/plugins/external/$(PROXIES)$$') \
		-- -timeout 5m -run '^($(NORACE))$$' ./core/master ./core/transfer ./eviction/replay \
		-- -timeout 15m -p 1 $$($(GO) list ./test/... | grep -v '/test/store')

test-plugins: plugins setup ## build the example policies anew, and test them and new policies and plugins in each language
	MOONCAKE_PLUGINS=$(CURDIR)/bin/plugins $(GO) run ./scripts/gotest -timeout 12m ./plugins/examples ./plugins/sdk/... -- -timeout 12m -run 'Policy|PluginNew' ./cmd/mooncake \
		-- -timeout 12m -run GuestsAreBuilt ./plugins/wasm \
		-- -race -timeout 12m ./plugins/external/backend ./plugins/external/policy ./plugins/external/transport

setup-store: ## install the older releases of the wheel that test-interop needs (about 1 GB, a minute)
	@scripts/setup-store.sh

test-interop: setup-store ## test the Store master with the clients of seven releases of the wheel
	$(GO) run ./scripts/gotest -timeout 30m -parallel 8 ./test/store/...

test-soak: ## the Store under kills, freezes and restarts for SOAK (default 5m): every byte right, no leak
	MOONCAKE_SOAK=$(or $(SOAK),5m) $(GO) run ./scripts/gotest -timeout 30m -run TestSoak ./test/store/clients

test-rdma: setup ## the transport verbs on soft-RoCE in a throw-away machine, with the wheel's engine too (RUN=regexp)
	GO='$(GO)' RUN='$(or $(RUN),.)' scripts/test-rdma.sh

test-quick: ## run the tests of PKG (default all) with what is installed, without the race detector
	$(GO) run ./scripts/gotest -timeout 10m $(PKG)

lint: ## gofmt, vet, staticcheck, the plugin protocol
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "not gofmt'ed:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) run ./scripts/protogen -check

bench: build setup ## compare our engine with the wheel's, iperf3 and memcpy, into docs/PERFORMANCE.md (5 minutes; ARGS="-only shm")
	$(GO) run ./scripts/benchcompare -o docs/PERFORMANCE.md $(ARGS)
	$(if $(ARGS),,$(GO) run ./scripts/benchwasm -o docs/PERFORMANCE.md)

bench-store: build setup ## compare our Store master with the wheel's (about 8 minutes; ARGS="-reps 5 -o FILE")
	$(GO) run ./scripts/benchstore $(ARGS)

bench-kv: build setup ## compare puts and gets of our Store client with the wheel's (about 5 minutes; ARGS="-only '1 MiB' -reps 5 -o FILE")
	$(GO) run ./scripts/benchkv $(ARGS)

bench-rdma: setup ## compare our engine over soft-RoCE with ib_write_bw, ib_read_bw and the wheel's (ARGS="-reps 5")
	GO='$(GO)' scripts/bench-rdma.sh $(ARGS)

bench-wasm: ## measure eviction policies in WebAssembly, good and bad ones, into docs/PERFORMANCE.md (about 5 minutes; ARGS="-only wasm-slip -reps 5")
	$(GO) run ./scripts/benchwasm -o docs/PERFORMANCE.md $(ARGS)

bench-go: ## run the Go benchmarks (BENCH=regexp PKG=./...)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem $(PKG)

fuzz: ## run every fuzz target for FUZZTIME (default 30s)
	@scripts/fuzz.sh $(FUZZTIME)

generate: ## regenerate what is generated, such as the reference pages in docs
	$(GO) generate ./...

proto: ## compile the plugin protocol, plugins/proto, into Go; refuses changes that break plugins in use
	$(GO) run ./scripts/protogen

clean: ## remove bin; .cache stays
	rm -rf bin
