#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Takes promtool, which checks the alert rules, out of Debian's package `prometheus` without installing it:
# nobody who builds Sluice wants a Prometheus that runs. `promtool.sh FOLDER`; needs no root.
set -eu
folder=$(realpath -m "$1")
command -v promtool >/dev/null && exit 0
[ -x "$folder/promtool" ] && exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
if ! apt-get -q=2 -o APT::Sandbox::User="$(id -un)" download prometheus >/dev/null; then
  echo "promtool.sh: apt has no package prometheus (\`apt-get update\`?); alert rules are not checked" >&2
  exit 0
fi
dpkg-deb -x prometheus_*.deb .
mkdir -p "$folder"
mv usr/bin/promtool "$folder/promtool"
