#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Fetches axe-core (MPL-2.0), by which the tests of the console judge accessibility, from the npm registry into FOLDER,
# and checks it. Nothing of it is shipped. `fetch_axe.sh FOLDER`; needs no root and no npm.
set -eu
version=4.14.1
sha256=e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745
folder=$(realpath -m "$1")
[ "$(cat "$folder/version" 2>/dev/null)" = "$version" ] && exit 0
mkdir -p "$folder"
${PYTHON:-python3} - "$folder" "$version" "$sha256" <<'END'
import hashlib, io, os, pathlib, sys, tarfile, urllib.request

folder, version, sha256 = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
registry = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org").rstrip("/")
with urllib.request.urlopen(f"{registry}/axe-core/-/axe-core-{version}.tgz", timeout=120) as answer:
    packed = answer.read()
if (found := hashlib.sha256(packed).hexdigest()) != sha256:
    sys.exit(f"fetch_axe.sh: axe-core {version} has SHA-256 {found}, expected {sha256}")
with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
    member = archive.extractfile("package/axe.min.js")
    assert member
    (folder / "axe.min.js").write_bytes(member.read())
(folder / "version").write_text(version)
END
