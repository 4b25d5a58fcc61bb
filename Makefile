# SPDX-License-Identifier: Apache-2.0
# `make` is what a change must pass, `make help` lists the rest. Only `make e2e` needs more than
# Go, git and make, and it installs what it needs.
.DEFAULT_GOAL := all
.PHONY: all build dev test plain lint modules generate e2e e2e-kube flow-report qos qos-update bench golden fuzz cover clean help

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
CONTROLLER_GEN := sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0
COUNT       ?= 6
BENCH       ?= .
FUZZTIME    ?= 20s
OUT         ?= bin
FLOWTIME    ?= 2m
# The race detector needs a C compiler; without one the tests run all the same.
RACE        := $(shell command -v $$(go env CC) >/dev/null && echo -race)

# testing PATTERN: the folders of our tests in which a line matches.
testing = $(sort $(dir $(shell grep -rlE --include='*_test.go' --exclude-dir=e2e '$(1)' .)))

all: build lint test ## what a change must pass

build: modules ## bin/penstock
	go build -trimpath -o bin/penstock ./cmd/penstock

dev: ## a gateway, simulated engines and metrics on this machine
	go run ./cmd/penstock dev

test: lint ## the quick tier: lint, unit tests and scripts, with the race detector
	@test -n '$(RACE)' || echo 'no C compiler: testing without the race detector'
	go test $(RACE) -shuffle=on -timeout=15m ./...

plain: ## what the race detector distorts: allocations, memory, long random lives, rehearsals
	go test -timeout=15m $(sort $(dir $(shell find . -mindepth 2 -name norace_test.go -printf '%h/ ')))
	go test -timeout=15m -run='^TestRehearsal$$' .

lint: modules ## gofmt, go vet, staticcheck, in both modules; what is generated is current
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "run gofmt -w $$unformatted"; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...
	cd e2e && go vet ./... && go run $(STATICCHECK) ./...
	@was=$$(cat $(GENERATED) | cksum); $(MAKE) -s generate; \
		test "$$was" = "$$(cat $(GENERATED) | cksum)" || { echo "deploy/crds was not what api says; it is now: commit it"; exit 1; }

GENERATED = api/v1/zz_generated.deepcopy.go api/v1alpha2/zz_generated.deepcopy.go deploy/crds/*.yaml

generate: ## deploy/crds and deepcopy, from the types of api/v1 and api/v1alpha2
	go run $(CONTROLLER_GEN) object:headerFile=scripts/license.go.txt crd paths=./api/v1 paths=./api/v1alpha2 output:crd:dir=deploy/crds

modules: ## download Go modules, trying again when the network fails
	@scripts/modules.sh "$(STATICCHECK) -version" "$(CONTROLLER_GEN) --version"

e2e: build ## the real parts: SDKs, Envoy, Prometheus, Chromium, libzmq, tokenizers, vLLM, Helm, a cluster, against bin/penstock
	scripts/install-envoy.sh
	scripts/install-prometheus.sh
	scripts/install-chromium.sh
	scripts/install-sdks.sh
	scripts/install-vllm.sh
	scripts/install-helm.sh
	scripts/install-crds.sh
	scripts/install-kube.sh
	scripts/install-kube-controllers.sh
	PENSTOCK_ZMQ_PYTHON=$$(scripts/install-zmq.sh)/venv/bin/python go test -count=1 -run=Libzmq ./source/kvevents
	PENSTOCK_TOKENIZERS_PYTHON=$$(scripts/install-tokenizers.sh)/venv/bin/python PENSTOCK_VLLM_PYTHON=$$(scripts/install-vllm.sh)/venv/bin/python \
		go test -count=1 -timeout=40m -run=Parity ./tokens
	cd e2e && go test -count=1 -p=1 -timeout=60m $$(go list ./... | grep -v /kube$$)
	cd e2e && go test -count=1 -timeout=40m -v ./kube

e2e-kube: build ## the cluster alone, in full size: etcd, an API server (10 to 20 minutes to build them once), Envoy, pods that are processes
	scripts/install-envoy.sh
	scripts/install-helm.sh
	scripts/install-crds.sh
	scripts/install-kube.sh
	scripts/install-kube-controllers.sh
	cd e2e && PENSTOCK_KUBE_PODS=1000 go test -count=1 -timeout=60m -v ./kube

flow-report: build ## docs/guide/flow-control-report.md, by loads of FLOWTIME each on simulated engines
	scripts/install-envoy.sh
	cd e2e && go test ./trial -count=1 -timeout=60m -v -run=TestReport -report=$(CURDIR)/docs/guide -for=$(FLOWTIME)

qos: build ## play the suite qos, and fail where a figure is worse than in docs/qos.md by more than its noise
	bin/penstock sim run --suite qos --against docs/qos.md

qos-update: build ## record its figures in docs/qos.md
	bin/penstock sim run --suite qos --record docs/qos.md

bench: ## benchmarks into $(OUT)/bench.txt, for benchstat (BENCH=regexp COUNT=6)
	@mkdir -p $(OUT)
	go test -run='^$$' -bench='$(BENCH)' -benchmem -count=$(COUNT) ./... | tee $(OUT)/bench.txt

golden: ## rewrite the files that tests compare with
	@for dir in $(call testing,cockroachdb/datadriven); do go test -count=1 $$dir -rewrite || exit; done
	@for dir in $(call testing,flag\.Bool."update"); do go test -count=1 $$dir -update || exit; done

fuzz: ## run each fuzz target for FUZZTIME
	@grep -rHoE --include='*_test.go' '^func Fuzz\w+' . | sed 's|/[^/]*:func | |' | while read -r dir target; do \
		echo "$$dir $$target"; go test $$dir -run='^$$' -fuzz="^$$target$$" -fuzztime=$(FUZZTIME) || exit; done

cover: ## bin/cover.html: which lines the quick tier runs
	@mkdir -p $(OUT)
	go test -coverpkg=./... -coverprofile=$(OUT)/cover.out ./...
	go tool cover -html=$(OUT)/cover.out -o $(OUT)/cover.html

clean: ## remove what make made
	rm -rf bin

help:
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t12
