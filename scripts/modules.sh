#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Downloads the Go modules of both modules, and of the tools that the given commands run, trying
# again when the network fails. Does nothing when they are there.
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."
retry go mod download
retry go -C e2e mod download
for tool in "$@"; do
	retry go run $tool
done
