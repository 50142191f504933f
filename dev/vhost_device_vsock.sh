#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds rust-vmm's vhost-device-vsock into $1/bin: what serves guests' vsock on a host whose kernel has no vhost-vsock.
# A machine without cargo goes without: the tests that need it are skipped, by name.
set -euo pipefail
root=$(mkdir -p "$1" && cd "$1" && pwd)
version=0.3.0
[ -x "$root/bin/vhost-device-vsock" ] && exit 0
if ! command -v cargo >/dev/null; then
  echo "no cargo: vhost-device-vsock is not built, and vsock is not tested" >&2
  exit 0
fi
# unoptimised: it is to be there soon, and a guest without KVM is slower
cargo install --quiet --locked --version "$version" --profile dev --root "$root" --target-dir "$root/vhost-device-vsock" vhost-device-vsock
rm -rf "$root/vhost-device-vsock"
