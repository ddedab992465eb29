#!/bin/sh
# SPDX-License-Identifier: MIT
# Reads "cuobjdump --dump-resource-usage" and prints a line per kernel, the one with most registers first: registers,
# stack and local memory in bytes, name. Fails where a kernel needs more than 128 registers a thread, which leaves room
# for two blocks of 256 threads on a multiprocessor, or keeps anything in local memory, to which it may have spilled.
set -eu
table=$(mktemp)
trap 'rm -f "$table"' EXIT
awk '/^ *Function / { name = $2; sub(/:$/, "", name) }
     /REG:/ { match($0, /REG:[0-9]+/); registers = substr($0, RSTART + 4, RLENGTH - 4)
              match($0, /STACK:[0-9]+/); stack = substr($0, RSTART + 6, RLENGTH - 6)
              match($0, /LOCAL:[0-9]+/); local_memory = substr($0, RSTART + 6, RLENGTH - 6)
              print registers, stack, local_memory, name }' | sort -rn >"$table"
[ -s "$table" ] || { echo "gpu_resources.sh: there is no kernel in what was read" >&2 && exit 1; }
echo "registers stack local kernel"
cat "$table"
awk '$1 > 128 { print "too many registers: " $4; bad++ } $2 + $3 > 0 { print "local memory: " $4; bad++ }
     END { exit bad > 0 }' "$table"
