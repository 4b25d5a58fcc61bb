#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Real Prometheus, from Debian's package, unpacked without being installed: it needs no root. Prints the folder:
# usr/bin/prometheus and usr/bin/promtool are the programs.
. "$(dirname "$0")/lib.sh"

apt() { apt-get -qq -o Dir::State="$PWD/apt" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$PWD/apt" -o APT::Sandbox::User= "$@"; }

fill() {
	if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
		say "this takes Debian's package: it needs apt-get and dpkg-deb"
		return 1
	fi
	mkdir -p apt/lists/partial apt/archives/partial
	retry apt update # lists of its own, since those of the machine may be old or not there
	retry apt download prometheus
	dpkg-deb -x prometheus_*.deb .
	rm -rf apt prometheus_*.deb
	usr/bin/prometheus --version >&2
	usr/bin/promtool --version >&2
}

install_once prometheus-debian
