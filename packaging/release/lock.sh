#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Renews the locks of releases, from pyproject.toml and build-tools.in: versions and hashes for Python 3.11 and later.
# Run by hand, before a release, and looked at as any other change; `make test-release` tries what came of it.
set -eu
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check uv
lock() {
  "$folder/venv/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header "$@"
}
lock pyproject.toml --extra etcd --extra vsphere --output-file packaging/release/host.txt
lock pyproject.toml --extra kubernetes --constraint packaging/release/host.txt --output-file packaging/release/kubernetes.txt
lock packaging/release/build-tools.in --output-file packaging/release/build-tools.txt
