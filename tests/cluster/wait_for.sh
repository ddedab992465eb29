# SPDX-License-Identifier: MIT
# Sourced by the scripts that start ranks on a cluster and wait for what these do.
# shellcheck shell=sh
wait_for() { # seconds, condition...
    tries=$(($1 * 10))
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 0.1
    done
}
