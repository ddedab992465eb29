#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs one script of tests/cluster where this machine lets it make network namespaces, else skips it.
# usage: run_cluster.sh SCRIPT; run from the top of the build tree
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/tests/test_env.sh"

skip() { # reason
    echo "1..0 # SKIP $1"
    exit 0
}

[ "$(id -u)" = 0 ] || skip "needs root to make network namespaces"
command -v ip >/dev/null || skip "needs the ip command (Debian: apt-get install iproute2)"
probe=isotherm-probe-$$
ip netns add "$probe" 2>/dev/null || skip "this machine does not allow network namespaces"
ip netns exec "$probe" true 2>/dev/null || entered=no
ip netns delete "$probe"
[ "${entered:-yes}" = yes ] || skip "this machine does not allow entering a network namespace"

exec "$1"
