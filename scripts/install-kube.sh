#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A real Kubernetes API server: etcd, kube-apiserver and kubectl, built from the Go modules that kube/go.mod pins. Prints
# the folder that holds the three. With nothing cached this is ten to twenty minutes of two cores, at a low priority.
. "$(dirname "$0")/lib.sh"
module=$(cd "$(dirname "$0")/kube" && pwd)

pinned() { sed -nE "s#^\s+$1 v([0-9.]+).*#\1#p" "$module/go.mod"; }
kube=$(pinned k8s.io/kubernetes)
etcd=$(pinned go.etcd.io/etcd/server/v3)

# program NAME PACKAGE: builds one into the current folder. Without the stamp /version says v0.0.0-master.
program() {
	local out=$PWD/$1 stamp= at
	for at in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
		stamp+=" -X $at.gitVersion=v$kube -X $at.gitMajor=${kube%%.*} -X $at.gitMinor=$(cut -d. -f2 <<<"$kube") -X $at.gitTreeState=clean"
	done
	say "building $1"
	retry env GOWORK=off CGO_ENABLED=0 nice -n 10 go -C "$module" build -mod=readonly -buildvcs=false -trimpath \
		-ldflags "-s -w$stamp" -o "$out" "$2"
}

fill() {
	retry env GOWORK=off go -C "$module" mod download k8s.io/kubernetes go.etcd.io/etcd/server/v3
	program etcd go.etcd.io/etcd/server/v3
	program kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
	program kubectl k8s.io/kubernetes/cmd/kubectl
	./kube-apiserver --version >&2
}

install_once "kube-$kube-etcd$etcd"
