# SPDX-License-Identifier: Apache-2.0
# Sourced by the installers. Tools live outside the repository, in one folder per name and
# version; a folder counts as installed when it holds the file "ok", which is written last.
set -euo pipefail
cache=${PENSTOCK_CACHE:-$HOME/.cache/penstock}

say() { echo "$(basename "$0"): $*" >&2; }

# retry COMMAND…: three tries, with a pause that grows, for what goes over the network.
retry() {
	local try
	for try in 1 2 3; do
		"$@" >&2 && return
		[ "$try" = 3 ] || { say "try $try of 3 went wrong: $*"; sleep $((try * 5)); }
	done
	say "gave up: $*"
	return 1
}

# install_once NAME-VERSION: runs the script's own fill, in an empty folder of that name, unless
# that was done before; then prints the folder. Several at once wait for the first.
install_once() {
	dir=$cache/$1
	mkdir -p "$cache"
	exec 9>"$cache/$1.lock"
	flock 9
	if [ ! -e "$dir/ok" ]; then
		say "installing $1 into $cache"
		rm -rf "$dir"
		mkdir "$dir"
		(cd "$dir" && fill)
		touch "$dir/ok"
	fi
	flock -u 9
	echo "$dir"
}

# venv PACKAGE…: a Python environment in ./venv with the packages.
venv() {
	if ! python3 -m venv venv >&2; then
		say "python3 cannot make an environment: install python3 and python3-venv"
		return 1
	fi
	retry pip install "$@"
}

pip() { venv/bin/python -m pip -q --disable-pip-version-check --no-input "$@"; }

# debian COMMAND…: apt-get with lists of its own in ./apt, since those of the machine may be old or not there. It
# needs no root and installs nothing; the first call fetches the lists. Remove ./apt when done.
debian() {
	local apt=(apt-get -qq -o Dir::State="$PWD/apt" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$PWD/apt" -o APT::Sandbox::User=)
	if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
		say "this takes Debian's package: it needs apt-get and dpkg-deb"
		return 1
	fi
	if [ ! -d apt ]; then
		mkdir -p apt/lists/partial apt/archives/partial
		retry "${apt[@]}" update
	fi
	retry "${apt[@]}" "$@"
}
