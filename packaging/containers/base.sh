#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes the image localhost/sluice-base of a distribution's packages alone, as root: no registry of images is asked. The
# mirrors are this machine's own (its apt sources), or what follows, as mmdebstrap takes it:
#   packaging/containers/base.sh [MIRROR...]
set -eu
suite=${SUITE:-bookworm}
image=${IMAGE:-localhost/sluice-base}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-venv "$suite" "$root/root.tar" "$@"
container=$(buildah from scratch)
buildah add "$container" "$root/root.tar" / >/dev/null
buildah commit --quiet --rm "$container" "$image"
