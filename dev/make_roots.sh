#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes roots of distributions, as root. `guest`: in which tests/guest_images installs the guest runtime: Debian 12, with
# what its recipes need (cloud-init, Ansible), and Debian 11, whose glibc (2.31) and Python (3.9) are the oldest that a
# mirror of Debian still has. `host`: in which tests/releases installs the host's package: Debian 12 and 13, whose Pythons
# are 3.11 and 3.13, and Debian 12 with systemd, which is booted. One that is there already is kept; one that the mirror has not is done without.
set -eu
folder=$1 kind=${2:-guest}
mkdir -p "$folder"
make_root() {
  local suite=$1 packages=$2 name=${3:-$1}
  [ ! -e "$folder/$name" ] || return 0
  rm -rf "$folder/$name.partial"
  echo "making $folder/$name" >&2
  mmdebstrap --quiet --variant=minbase --include="$packages" "$suite" "$folder/$name.partial" || return 1
  mv "$folder/$name.partial" "$folder/$name"
}
if [ "$kind" = host ]; then
  packages=python3,libssl3,iproute2
  make_root bookworm "$packages"
  make_root bookworm "$packages,systemd,systemd-sysv,dbus,procps" bookworm-systemd
  make_root trixie "${packages/libssl3/libssl3t64}" || echo "no Debian 13: the mirror does not have it" >&2
  exit 0
fi
make_root bookworm python3,python3-apt,ca-certificates,curl,libstdc++6,systemd,udev,cloud-init,ansible-core
make_root bullseye python3 || echo "no Debian 11: the mirror does not have it" >&2
