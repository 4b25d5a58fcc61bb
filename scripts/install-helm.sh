#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Real Helm, built from its Go module. Prints the folder: helm is the program.
. "$(dirname "$0")/lib.sh"
version=4.3.2

fill() {
	# Its go.mod names the versions of its dependencies, and go.sum of the proxy's database holds them.
	GOBIN=$PWD GOFLAGS=-trimpath GOWORK=off CGO_ENABLED=0 retry go install -ldflags="-s -w" "helm.sh/helm/v4/cmd/helm@v$version"
	./helm version --short >&2
}

install_once "helm-$version"
