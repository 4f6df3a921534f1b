#!/usr/bin/env bash
# Fetches the wheels that tests/gpu/run.sh carries to a machine without a network.
#
#   tests/gpu/wheels.sh FOLDER [PYTHON_VERSION]     3.12 if not given
#
# PYTHON names the interpreter whose pip is used.
set -euo pipefail

folder=${1:?usage: tests/gpu/wheels.sh FOLDER [PYTHON_VERSION]}
version=${2:-3.12}
# What the trainer imports beyond PyTorch, in the locked versions; no dependencies are followed.
names='megatron-core|einops|packaging|safetensors|numpy|typing_extensions|pydantic|pydantic_core'
names="$names|annotated-types|typing-inspection"
lock=$(dirname "$0")/../../requirements/cpu.lock
mapfile -t pins < <(grep -iE "^($names)==" "$lock")
"${PYTHON:-python3}" -m pip download --quiet --no-deps --only-binary=:all: \
    --python-version "$version" --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform any \
    --dest "$folder" "${pins[@]}"
