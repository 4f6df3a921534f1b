#!/usr/bin/env bash
# Measures this project on a machine with one H100 or H200 and PyTorch for CUDA: one JSON on stdout.
#
#   tests/gpu/run.sh WHEELS    folder of wheels, made on a machine with a network:
#                              tests/gpu/wheels.sh WHEELS 3.12     (the GPU machine's Python)
#   tests/gpu/run.sh --dry-run tiny sizes, with what is installed, GPU or not
#
# Nothing is installed into the machine's Python. At most four minutes. PYTHON names the interpreter.
set -euo pipefail

python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
if [[ $# -ne 1 ]]; then
    echo "usage: tests/gpu/run.sh WHEELS | --dry-run" >&2
    exit 2
fi
export PYTHONPATH=$root
if [[ $1 != --dry-run ]]; then
    shopt -s nullglob
    wheels=("$1"/*.whl)
    if [[ ${#wheels[@]} -eq 0 ]]; then
        echo "run.sh: need wheels in $1, got none. Make them with tests/gpu/wheels.sh." >&2
        exit 1
    fi
    packages=$(mktemp -d)
    trap 'rm -rf "$packages"' EXIT
    "$python" -m pip install --quiet --no-deps --no-index --target "$packages" "${wheels[@]}" >&2
    export PYTHONPATH=$root:$packages
    set --
fi
timeout 240 "$python" -m tests.gpu.measure "$@"
