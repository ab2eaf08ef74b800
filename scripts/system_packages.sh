#!/usr/bin/env bash
# Installs with apt-get what is missing: scripts/system_packages.sh COMMAND:DEBIAN-PACKAGE ...  (run by `make test`).
# Does nothing where every command is there; else it takes root, or sudo without a password.
set -euo pipefail

missing=() as_root=()
for entry in "$@"; do
    command -v "${entry%%:*}" >/dev/null || missing+=("${entry#*:}")
done
[ ${#missing[@]} -gt 0 ] || exit 0
[ "$(id -u)" = 0 ] || as_root=(sudo -n)
echo "Installing system packages: ${missing[*]}"
if ! { "${as_root[@]}" apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
    "${as_root[@]}" apt-get install -y -qq "${missing[@]}"; } </dev/null; then
    echo "error: install these by hand, then run make test again: ${missing[*]}" >&2
    exit 1
fi
