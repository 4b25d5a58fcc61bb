#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The controllers of Kubernetes (Deployments, EndpointSlices, garbage …), built from the Go modules that kube/go.mod pins, as
# install-kube.sh builds the API server that they belong to. Prints the folder that holds kube-controller-manager. After
# install-kube.sh this is three minutes of two cores, at a low priority.
. "$(dirname "$0")/lib.sh"
module=$(cd "$(dirname "$0")/kube" && pwd)
kube=$(sed -nE "s#^\s+k8s.io/kubernetes v([0-9.]+).*#\1#p" "$module/go.mod")

fill() {
	local out=$PWD/kube-controller-manager
	retry env GOWORK=off go -C "$module" mod download k8s.io/kubernetes
	say "building kube-controller-manager"
	retry env GOWORK=off CGO_ENABLED=0 nice -n 10 go -C "$module" build -mod=readonly -buildvcs=false -trimpath -ldflags "-s -w" \
		-o "$out" k8s.io/kubernetes/cmd/kube-controller-manager
}

install_once "kube-controllers-$kube"
