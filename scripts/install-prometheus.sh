#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Real Prometheus, from Debian's package, unpacked without being installed: it needs no root. Prints the folder:
# usr/bin/prometheus and usr/bin/promtool are the programs.
. "$(dirname "$0")/lib.sh"

fill() {
	debian download prometheus
	dpkg-deb -x prometheus_*.deb .
	rm -rf apt prometheus_*.deb
	usr/bin/prometheus --version >&2
	usr/bin/promtool --version >&2
}

install_once prometheus-debian
