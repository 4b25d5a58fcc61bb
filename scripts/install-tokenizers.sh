#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tokenizers that engines use, for what package tokens is compared with. Prints the folder: venv/bin/python imports
# tokenizers, transformers, jinja2, sentencepiece and mistral_common, which carries vocabularies.
. "$(dirname "$0")/lib.sh"
tokenizers=0.23.3
transformers=5.19.0
sentencepiece=0.2.3
mistral_common=1.13.1
jinja=3.1.6

fill() { venv "tokenizers==$tokenizers" "transformers==$transformers" "sentencepiece==$sentencepiece" "mistral-common==$mistral_common" \
	"jinja2==$jinja" protobuf; }

install_once "tokenizers-py$tokenizers-$transformers-$sentencepiece-$mistral_common-$jinja"
