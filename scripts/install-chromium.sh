#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Real Chromium, from Debian's package and those that it needs and this machine lacks, unpacked without being
# installed: it needs no root. Prints the folder: chromium is the program.
. "$(dirname "$0")/lib.sh"

fill() {
	debian install --yes --reinstall --download-only --no-install-recommends -o Debug::NoLocking=1 chromium fonts-dejavu-core
	for deb in apt/archives/*.deb; do dpkg-deb -x "$deb" .; done
	rm -rf apt
	cat >fonts.conf <<-END
		<?xml version="1.0"?>
		<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
		<fontconfig><dir>$PWD/usr/share/fonts</dir><cachedir>$PWD/fonts</cachedir></fontconfig>
	END
	local libraries
	libraries=$(echo "$PWD"/usr/lib/*-linux-gnu)
	cat >chromium <<-END
		#!/bin/sh
		export LD_LIBRARY_PATH=$libraries:$libraries/pulseaudio FONTCONFIG_FILE=$PWD/fonts.conf
		exec $PWD/usr/lib/chromium/chromium "\$@"
	END
	chmod +x chromium
	./chromium --version >&2
}

install_once chromium-debian
