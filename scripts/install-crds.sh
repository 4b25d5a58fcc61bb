#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The kinds of others that our manifests use, as CRDs out of their projects' Go modules. Prints the folder.
#
# Google's (HealthCheckPolicy, GCPBackendPolicy, PodMonitoring) are in no module that can be had.
. "$(dirname "$0")/lib.sh"

# take MODULE@VERSION FILE…: copies files of a module here.
take() {
	local dir
	retry go -C / mod download "$1"
	dir=$(go -C / mod download -json "$1" | sed -nE 's/^\s*"Dir": "(.*)",?$/\1/p')
	shift
	local file
	for file in "$@"; do cp "$dir/$file" .; done
	chmod u+w ./*
}

fill() {
	take sigs.k8s.io/gateway-api-inference-extension@v1.6.0 config/crd/bases/inference.networking.k8s.io_inferencepools.yaml
	take sigs.k8s.io/gateway-api@v1.6.1 config/crd/standard/gateway.networking.k8s.io_httproutes.yaml
	take istio.io/api@v1.32.0 kubernetes/customresourcedefinitions.gen.yaml
	take github.com/kedacore/keda/v2@v2.21.0 config/crd/bases/keda.sh_scaledobjects.yaml
	take github.com/prometheus-operator/prometheus-operator@v0.85.0 \
		example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml
	take github.com/envoyproxy/gateway@v1.9.1 \
		charts/gateway-helm/charts/crds/crds/generated/gateway.envoyproxy.io_backendtrafficpolicies.yaml
}

install_once "crds-$(sha256sum <"$0" | cut -c1-8)"
