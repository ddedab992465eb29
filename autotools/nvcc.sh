#!/bin/sh
# SPDX-License-Identifier: MIT
# Lets libtool drive nvcc: what it adds for the host's compiler is handed on.
# usage: nvcc.sh NVCC ARGUMENT...
nvcc=$1
shift
for argument; do
    shift
    case $argument in
    -fPIC | -DPIC | -pthread | -W*) set -- "$@" -Xcompiler "$argument" ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec "$nvcc" "$@"
