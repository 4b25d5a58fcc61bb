#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# libzmq and msgspec as engines use them, for what speaks to us over KV events. Prints the folder: venv/bin/python
# imports zmq and msgspec.
. "$(dirname "$0")/lib.sh"
pyzmq=27.3.0
msgspec=0.23.0

fill() { venv "pyzmq==$pyzmq" "msgspec==$msgspec"; }

install_once "zmq-py$pyzmq-msgspec$msgspec"
