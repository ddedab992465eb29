#!/bin/sh
# SPDX-License-Identifier: MIT
# Exchanges the networks of train with PyTorch, where that is there, and prints the results as TAP.
# usage: check_torch_models.sh, in the build tree; ISO_TEST_PYTHON: a Python that has torch
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
. "$root/tests/test_env.sh"
for python in "${ISO_TEST_PYTHON:-python3}" /usr/bin/python3 none; do
    [ "$python" != none ] || break
    "$python" -c 'import numpy, torch' 2>/dev/null && break
done
if [ "$python" = none ]; then
    echo "1..0 # SKIP no Python with torch (Debian: python3-torch)"
    exit 0
fi
exec "$python" "$root/tests/torch_models.py" "$PWD/tests/model_probe" mlp cnn lenet resnet18 resnet50
