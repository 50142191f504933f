#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Takes promtool, which checks the alert rules, and Prometheus, which tests of the console's charts let scrape a pool,
# out of Debian's package `prometheus` without installing it: that would run one as a service of the machine.
# `prometheus.sh FOLDER`; needs no root.
set -eu
folder=$(realpath -m "$1")
command -v promtool >/dev/null && command -v prometheus >/dev/null && exit 0
[ -x "$folder/promtool" ] && [ -x "$folder/prometheus" ] && exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
if ! apt-get -q=2 -o APT::Sandbox::User="$(id -un)" download prometheus >/dev/null; then
  echo "prometheus.sh: apt has no package prometheus (\`apt-get update\`?); alert rules and charts from Prometheus" \
    "are not tested" >&2
  exit 0
fi
dpkg-deb -x prometheus_*.deb .
mkdir -p "$folder"
mv usr/bin/promtool usr/bin/prometheus "$folder/"
