# Everything a developer runs. `make` alone prints what there is.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# A clone in another folder finds what this one has compiled.
export GOFLAGS := -trimpath $(filter-out -trimpath,$(shell go env GOFLAGS))

# The tools of `make lint` are pinned in a module of their own.
TOOL := GOWORK=off go tool -modfile=tools/go.mod
# One Postgres and one Kafka for all packages of a run.
STACK := go run ./internal/testenv/stack --
# Packages with other projects' clients, which take minutes to compile: `make interop` has them.
OTHERS := ./verify/interop ./verify/routers ./examples/watermill
# What the gates build and test. `make bench-smoke` has the tests of bench.
LINTED = $(filter-out $(OTHERS:.%=github.com/effectonce/effectonce%),$(shell go list work))
# Those that take long come first, beside the root's.
SLOW := ./relay ./cmd/... ./verify/browser ./inbox ./consumer ./verify/... ./idempotency/... ./examples/...
ALL = $(filter-out $(OTHERS:.%=github.com/effectonce/effectonce%),$(shell go list $(SLOW) work | grep -v /verify/bench))
# The race detector is for packages with goroutines of their own: it takes five times as long. The commit draws which.
RACED = $(if $(filter 1,$(shell echo $$(($(SEED) / 4 % 2)))),./relay/...,./inbox/... ./consumer/... ./publisher/... ./ui/internal/...)
# What a command that repeats a test has to say too.
AGAIN = SEED=$(SEED) CORNER=$(CORNER)$(if $(filter command,$(origin RACED)), RACED="$(RACED)")$(if $(EFFECTONCE_NIGHTLY), EFFECTONCE_NIGHTLY=1)
# go test is green where no test has the name that it was given.
NAMED := | awk '{ print; fflush() } /no tests? (to run|files)/ { none = 1; next } /^(ok|FAIL)/ { ran = 1 } \
	END { if (none && !ran) { print "no test has this name"; exit 1 } }'
# What to test: make test PKG=./relay/... RUN=TestTakeOver
PKG ?= $(ALL)
RUN ?= .
FUZZTIME ?= 30s
PROOF ?= .
# What the commit draws: the seed of the random tests, and the servers, the oldest and the newest of both.
SEED ?= $(shell echo $$((0x$$(git rev-parse --short=7 HEAD 2> /dev/null || echo 1))))
SERVERS := 15.19.0/3.3.2 15.19.0/4.3.1 18.6.0/3.3.2 18.6.0/4.3.1
CORNER ?= $(word $(shell echo $$(($(SEED) % 4 + 1))),$(SERVERS))
on = $(if $(1),EFFECTONCE_TEST_POSTGRES_VERSION=$(patsubst %/,%,$(dir $(1))) EFFECTONCE_TEST_KAFKA_VERSION=$(notdir $(1)))

help: ## print this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

test: ## the tests of every change, on a throwaway Postgres and Kafka; some: make test PKG=./relay RUN=TestP5
	$(call on,$(CORNER)) RACED='$(RACED)' RUN='$(value RUN)' EFFECTONCE_TEST_SEED=$(SEED) AGAIN='$(AGAIN)' \
		$(STACK) tools/test.sh $(PKG)

test-short: ## the quick ones, without the race detector and a real Kafka; of one room: make test-short PKG=./relay
	go test -short -p 2 -timeout 15m -run '$(value RUN)' $(PKG) $(NAMED)

whole: ## the packages with tests that are larger by night, in that size
	@$(MAKE) --no-print-directory test RACED= EFFECTONCE_NIGHTLY=1 \
		PKG="$$(git grep -lE 'draw\.(Size|Nightly)\(' -- '*_test.go' | xargs -n1 dirname | sort -u | sed 's|^|./|' | paste -sd ' ')"

nightly: ## what .ci/run has no time for, with a summary at its end; some of it: make nightly ONLY="bugs race"; nothing drawn: ALL=1
	tools/nightly.sh $(ONLY)

RUNS ?= 50
SIDE ?= 8
# With TMPDIR set, the servers are on disk.
flaky: ## run tests RUNS (50) times, SIDE (8) processes at a time, to find those that fail by chance: make flaky PKG=./relay RUN=TestP5
	TMPDIR=$${TMPDIR:-/tmp} RACED='$(RACED)' RUNS='$(RUNS)' SIDE='$(SIDE)' RUN='$(value RUN)' $(STACK) tools/flaky.sh $(PKG)

models: ## relay and inbox, every interleaving of small configurations; without the race detector, for nothing runs beside them
	$(STACK) go test -p 2 -timeout 15m -run '^TestModel' ./relay ./inbox $(NAMED)

proof: ## kill processes at every statement, COMMIT and request to Kafka, and cut the connection at each; CORNER=18.6.0/4.3.1
	$(call on,$(CORNER)) EFFECTONCE_PROOF=1 $(STACK) go test -count=1 -timeout 30m -parallel 10 -run '$(PROOF)' ./verify/proof $(NAMED)

interop: ## with others' clients: Watermill, the CloudEvents SDK, kcat where it is installed; most of it is waiting for sarama's groups
	go vet $(OTHERS)
	$(STACK) go test -count=1 -p 1 -timeout 5m $(OTHERS)
	$$($(TOOL) -n staticcheck) $(OTHERS)

# Postgres and Kafka, as in Maven Central: the oldest and the newest of both, and those between.
CORNERS ?= $(SERVERS) 16.15.0/3.9.2 17.11.0/4.1.0
RULES := ./migrations ./outbox ./relay/... ./publisher ./consumer ./inbox/... ./idempotency/pgstore ./verify/failover
PARTS ?= rules proof soak
comma := ,
matrix: ## rules, proof and a short soak with other versions of Postgres and Kafka: make matrix CORNERS=18.6.0/4.3.1 PARTS=rules
	@for corner in $(subst $(comma), ,$(CORNERS)); do echo "Postgres $${corner%/*}, Kafka $${corner#*/}"; for part in $(PARTS); do \
		$(MAKE) --no-print-directory CORNER=$$corner matrix-$$part || failed+="$$corner $$part; "; \
	done; done; if [ -n "$${failed:-}" ]; then echo "failed: $$failed"; exit 1; fi

matrix-rules:
	$(MAKE) --no-print-directory test RACED= PKG="$(RULES)"
matrix-proof: proof
matrix-soak: soak

debezium: ## the tests with a real Debezium, which Maven fetches the first time
	EFFECTONCE_TEST_DEBEZIUM=1 $(STACK) go test -count=1 -timeout 15m -run Debezium ./verify/foreign $(NAMED)

compose: ## start the services of deploy/compose that are built from this tree as processes, with their settings
	EFFECTONCE_COMPOSE=1 $(STACK) go test -count=1 -timeout 15m -run TestServices -v ./examples/internal/compose $(NAMED)

charts: ## lint, render and validate the Helm chart, and compare the plain manifests; its module is not in go.work
	cd verify/deploy/helm && GOWORK=off go vet ./... && GOWORK=off go test -count=1 -timeout 10m ./...

guarantees: ## every test, and whether those of each rule in docs/rules.md passed
	@results=$$(mktemp); trap 'rm -f "$$results"' EXIT; \
	$(STACK) go test -json -p 2 -timeout 15m $(ALL) > "$$results" || true; \
	EFFECTONCE_PROOF=1 $(STACK) go test -json -timeout 30m -parallel 10 ./verify/proof >> "$$results" || true; \
	$(STACK) go test -json -timeout 5m ./verify/interop >> "$$results" || true; \
	grep -h '"Action":"fail"' "$$results" || true; \
	go run ./verify/guarantees docs/rules.md < "$$results"

lint: ## formatting, go vet, staticcheck, actionlint, checksums of the dependencies, and that each module stands without go.work
	@if [ "$$(go env GOWORK)" = off ]; then echo "GOWORK=off hides all modules but one"; exit 1; fi
	@unformatted=$$($(TOOL) gofumpt -l .); \
	if [ -n "$$unformatted" ]; then echo "not in gofumpt's format:"; echo "$$unformatted"; exit 1; fi
	@go vet $(LINTED)
	$(TOOL) actionlint
	@if grep -rnE 'uses: ' .github/workflows | grep -vE '@[0-9a-f]{40} # v'; then echo "name an action by its commit"; exit 1; fi
	go mod verify > /dev/null
	@before=$$(cksum go.work.sum); go list -m all > /dev/null; \
	if [ "$$before" != "$$(cksum go.work.sum)" ]; then echo "go.work.sum lacked lines: go mod download, and commit it"; exit 1; fi
	go list -m -f '{{.Dir}}' | while read -r module; do \
		(cd "$$module" && GOWORK=off go list -test -deps ./... > /dev/null < /dev/null) || exit 1; done
	@$$($(TOOL) -n staticcheck) $(LINTED)

# What users may build on other systems. Apart from lint: with a cold cache it takes minutes.
vet-others: ## go vet of the released modules, with their tests, for Windows and macOS
	for system in windows darwin; do \
		GOOS=$$system CGO_ENABLED=0 go vet $$(grep -v '^#' tools/release/modules | sed 's|.*|./&/...|'); done

bugs: ## the gate on the tests: put in each bug of verify/mutations and see it found; some: BUG="name name", a part: PART=1/4
	$(STACK) go run ./verify/mutations $(if $(PART),-part $(PART)) $(BUG)

mutants: ## change the rooms that only decide in one small place at a time, and see that a test notices; some: ROOM=event
	go run ./verify/mutants $(ROOM)

DURATION ?= 40s
soak: ## faults for DURATION (40s), drawn by SEED, of the kinds FAULTS (all); three brokers from 3m on, or BROKERS=3; DEDUP=watermark, FEED=wal
	$(call on,$(CORNER)) EFFECTONCE_SOAK_DURATION=$(DURATION) EFFECTONCE_SOAK_SEED=$(SEED) EFFECTONCE_SOAK_FAULTS=$(FAULTS) \
		EFFECTONCE_SOAK_BROKERS=$(BROKERS) EFFECTONCE_SOAK_DEDUP=$(DEDUP) EFFECTONCE_SOAK_FEED=$(FEED) \
		go test -count=1 -timeout 0 -v -run 'TestSoak$$' ./verify/soak $(NAMED)

fuzz: ## every fuzz target for FUZZTIME (30s), five at a time
	@grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed -E 's|^(.*)/[^/]*:[0-9]+:func (.*)$$|\1 \2|' | \
	$(STACK) xargs -P 5 -L 1 tools/fuzz.sh $(FUZZTIME)

vuln: ## known vulnerabilities in what is built here; says so where their database cannot be reached
	@tools/vuln.sh

api: ## the exported API compared with the last release, or with SINCE=commit; accepted changes: tools/api-accepted.txt
	tools/api.sh

screenshots: ## the pictures of pages in docs, by the tests that visit them
	EFFECTONCE_REQUIRE_CHROMIUM=1 EFFECTONCE_SCREENSHOTS=$(CURDIR)/docs/operations/ui \
		go test -count=1 -run '^Test(Screenshots|Play)$$' ./verify/browser $(NAMED)

diagrams: ## the SVGs of docs/diagrams from their text; a test compares the hashes at their ends
	@for text in docs/diagrams/*.d2; do \
		GOWORK=off go tool -modfile=tools/diagrams.mod d2 --scale 1 --theme 0 --dark-theme 200 --pad 8 $$text $${text%.d2}.svg; \
		echo "<!-- git hash-object $$text: $$(git hash-object $$text) -->" >> $${text%.d2}.svg; done

# Of a release: make site VERSION=v0.1.0
VERSION ?= main
site: ## docs as a site in .cache/site/html, strictly, with its links checked; the generator comes from PyPI, once
	python3 tools/site/site.py $(VERSION)

site-seen: site ## and visit its pages in Chromium at two widths, and search them; pictures, light and dark, in .cache/site/seen
	mkdir -p .cache/site/seen
	EFFECTONCE_REQUIRE_CHROMIUM=1 EFFECTONCE_DOCUMENTS=$(CURDIR)/.cache/site/html/$(VERSION) go test -count=1 -timeout 15m \
		-run '^TestDocuments' -artifacts -outputdir $(CURDIR)/.cache/site/seen ./verify/browser $(NAMED)

image: ## relay's image for amd64 and arm64 from dist/VERSION in dist/VERSION-image, without an engine: buildah, skopeo, jq
	tools/image.sh $(VERSION) dist/$(VERSION) dist/$(VERSION)-image

image-check: ## what is in that image, and run it in podman by runc on real servers, and its arm64 in qemu-user-static
	EFFECTONCE_REQUIRE_KAFKA=1 EFFECTONCE_IMAGE=$(CURDIR)/dist/$(VERSION)-image go test -count=1 -v ./verify/image

release: ## a release's artefacts in dist/VERSION, of its tags or, before there are any, of HEAD: make release VERSION=v0.1.0
	rm -rf dist/$(VERSION)
	tools/release/build.sh $(VERSION) dist/$(VERSION)

release-check: release ## the same, built again and compared, installed, and run on real servers
	tools/release/check.sh $(VERSION) dist/$(VERSION)

first-hour: ## every command of docs/first-hour.md, as it stands there
	EFFECTONCE_FIRST_HOUR=1 go test -count=1 -timeout 15m -v -run '^TestPageRuns$$' ./cmd/relay-dev $(NAMED)

nightshift: ## stage failures on real servers, mend them from the pages, and write what was seen into docs/operations/ui.md; RUN='a_topic.*'
	EFFECTONCE_REQUIRE_CHROMIUM=1 EFFECTONCE_REQUIRE_KAFKA=1 EFFECTONCE_NIGHTSHIFT=$(CURDIR)/docs/operations/ui.md \
		go test -count=1 -timeout 60m -parallel 6 -run '^TestNightShift.*/$(RUN)' ./verify/browser $(NAMED)

demo: ## payments to ledger and email in one process, with faults, and the count at the end
	go run ./examples/demo

bench: ## rates on this machine, peers side by side; one case: make bench ONLY=relay
	cd verify/bench && go run . $(if $(ONLY),-only $(ONLY))

# What the smoke runs: cases that take seconds with small numbers.
SMOKE := relay,inbox,consumer,latency,append
bench-smoke: ## the benchmark's own tests, and minutes of small numbers: does it work and print? Its figures are worth nothing
	cd verify/bench && go test -count=1 ./...
	cd verify/bench && go run . -quick -only $(SMOKE)

bench-check: ## what an event costs in CPU and allocations, compared with verify/bench/baseline.json
	cd verify/bench && go run . -check

servers: ## fetch the servers of the tests ahead of the first one: Postgres, Kafka, DynamoDB Local
	$(call on,$(CORNER)) $(STACK) fetch

clean: ## remove the caches that tests filled
	cache=$$($(STACK) cache) && rm -rf "$$cache"/pg-* "$$cache"/postgres-[0-9]* "$$cache"/kafka-[0-9]* "$$cache"/dynamodb-[0-9]* \
		"$$cache"/strimzi-* "$$cache"/debezium-* "$$cache"/site-* "$${TMPDIR:-/tmp}"/effectonce-postgres-[0-9]*
	go clean -testcache

.PHONY: api charts compose flaky help nightly test test-short models proof interop debezium guarantees lint soak fuzz vuln demo bench bench-smoke bench-check servers clean bugs mutants matrix matrix-rules matrix-proof matrix-soak screenshots site release release-check vet-others image image-check first-hour nightshift diagrams site-seen
