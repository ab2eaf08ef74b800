#!/usr/bin/env bash
# Makes a virtual environment and installs hebe into it: scripts/setup.sh DIRECTORY  (run by `make setup`).
#
#   PYTHON       which Python, 3.11 or later; by default the first of python3, python3.11 ... that will do
#   TORCH_INDEX  a package index for torch alone. PyPI's torch for Linux brings several GB of CUDA libraries;
#                https://download.pytorch.org/whl/cpu has the one without them
set -euo pipefail

venv="${1:?where to make the environment}"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

suits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local name
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if command -v "$name" >/dev/null && suits "$name"; then
            echo "$name"
            return
        fi
    done
    echo "error: ${PYTHON:-python3} is not Python 3.11 or later; name one: make setup PYTHON=..." >&2
    return 1
}

if ! { suits "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }; then
    python="$(find_python)"
    echo "Making $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv" || {
        echo "error: cannot make a virtual environment (on Debian: apt-get install python3-venv)" >&2
        exit 1
    }
fi

# What it installs, pip says itself, in full in its last line.
pip() { "$venv/bin/python" -m pip "$@" </dev/null; }

if [ -n "${TORCH_INDEX:-}" ]; then
    echo "Installing torch from $TORCH_INDEX"
    pip install --constraint constraints.txt --index-url "$TORCH_INDEX" torch
fi
echo "Installing hebe and what it needs (some minutes and about 1.5 GB; more where torch brings CUDA)"
pip install --constraint constraints.txt --editable '.[test,check]'
