#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the vCenter that tests/vsphere drives, by Go 1.25 or later. `build_vsphere_simulator.sh VENV TARGET`
set -eu
venv=$(realpath -s "$1") target=$(realpath -m "$2")
go=$("$(dirname "$0")/find_go.sh" "$venv" 25)
cd "$(dirname "$0")/../tests/vsphere/simulator"
exec "$go" build -buildvcs=false -o "$target" .
