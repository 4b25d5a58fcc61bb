#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints envoy.yaml changed as the flags say:
#
#   --listen HOST:PORT     where clients call           (0.0.0.0:8080)
#   --admin HOST:PORT      Envoy's own pages            (127.0.0.1:9901)
#   --picker HOST:PORT     penstock's ext_proc          (127.0.0.1:9002)
#   --standby HOST:PORT    a second picker, which takes over when the first dies
#   --plaintext            no TLS to the picker
#   --fail-open LIST       without a picker, use these endpoints: HOST:PORT,HOST:PORT…
#
# IPv6 addresses are written [::1]:9002.
set -euo pipefail
edit=(-e "")

# at MARK HOST:PORT: puts the address into the line with that mark.
at() {
	local host=${2%:*}
	host=${host#[}
	edit+=(-e "/# render: $1\$/ s/address: [^ {]*, port_value: [0-9]*/address: \"${host%]}\", port_value: ${2##*:}/")
}

# keep BLOCK, drop BLOCK: everything between "render: BLOCK begin" and "render: BLOCK end".
keep() { edit+=(-e "/# render: $1 begin/,/# render: $1 end/ { /# render: $1 /!s/^\( *\)# /\1/ }"); }
drop() { edit+=(-e "/# render: $1 begin/,/# render: $1 end/ d"); }

while [ $# -gt 0 ]; do
	case $1 in
	--listen | --admin | --picker) at "${1#--}" "$2"; shift 2 ;;
	--standby) keep standby; at standby "$2"; shift 2 ;;
	--plaintext) drop tls; shift ;;
	--fail-open)
		drop fail-close
		keep fail-open
		edit+=(-e '/# render: failure-mode$/ s/false/true/')
		IFS=, read -ra endpoints <<<"$2"
		# One copy of the marked line for each endpoint.
		for e in "${endpoints[@]}"; do
			host=${e%:*} host=${host#[}
			edit+=(-e "/# render: endpoint\$/ { h; s/address: [^ {]*, port_value: [0-9]*/address: \"${host%]}\", port_value: ${e##*:}/; s/ # render: endpoint\$//p; x }")
		done
		edit+=(-e '/# render: endpoint$/ d')
		shift 2
		;;
	*) sed -n '3,/^set/ { /^set/!s/^# \{0,1\}//p }' "$0" >&2; exit 2 ;;
	esac
done
sed "${edit[@]}" "$(dirname "$0")/envoy.yaml"
