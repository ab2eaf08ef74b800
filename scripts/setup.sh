#!/usr/bin/env bash
# Makes a virtual environment and installs hebe into it: scripts/setup.sh DIRECTORY [EXTRA,...]  (run by `make setup`,
# and with the extras that tests and checks need by `make test` and others).
#
#   PYTHON       which Python, 3.11 or later; by default the first of python3, python3.11 ... that will do
#   TORCH_INDEX  a package index for torch alone. PyPI's torch for Linux brings several GB of CUDA libraries;
#                https://download.pytorch.org/whl/cpu has the one without them
set -euo pipefail

venv="${1:?where to make the environment}"
extras="${2:-}"
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

version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

if suits "$venv/bin/python" && [ -n "${PYTHON:-}" ]; then
    python="$(find_python)"
    if [ "$(version "$python")" != "$(version "$venv/bin/python")" ]; then
        echo "error: $venv is of Python $(version "$venv/bin/python"), $python is $(version "$python");" \
            "make clean takes it away" >&2
        exit 1
    fi
fi
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
    if "$venv/bin/python" -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null; then
        echo "torch is there already and stays; make clean first to have it from $TORCH_INDEX"
    else
        echo "Installing torch from $TORCH_INDEX"
        # What it needs comes with the rest: such an index need not have it.
        pip install --constraint constraints.txt --index-url "$TORCH_INDEX" --no-deps torch
    fi
fi
if [ -n "$extras" ]; then
    echo "Installing what hebe's tests and checks need"
else
    echo "Installing hebe and what it needs (some minutes and about 1.5 GB; more where torch brings CUDA)"
fi
pip install --constraint constraints.txt --editable ".${extras:+[$extras]}"
