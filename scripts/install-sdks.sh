#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The SDKs that people call us with. Prints the folder: venv/bin/python imports openai and
# anthropic, node run in it requires openai. (OpenAI's Go SDK is a dependency of the e2e module.)
. "$(dirname "$0")/lib.sh"
openai=3.57.0
anthropic=2.14.0
openai_js=6.30.1 # 7 needs Node 22; Debian 12 has 18

fill() {
	venv "openai==$openai" "anthropic==$anthropic"
	command -v npm >&2 || { say "there is no npm: install nodejs and npm"; return 1; }
	retry npm install --no-audit --no-fund --silent --ignore-scripts --prefix . "openai@$openai_js"
}

install_once "sdks-py$openai-$anthropic-js$openai_js"
