#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes the roots of distributions in which tests/guest_images installs the guest runtime, as root: Debian 12, with what
# its recipes need (cloud-init, Ansible), and Debian 11, whose glibc (2.31) and Python (3.9) are the oldest that a mirror
# of Debian still has. One that is there already is kept; Debian 11 is done without where the mirror has it no more.
set -eu
folder=$1
mkdir -p "$folder"
make_root() {
  local suite=$1 packages=$2
  [ ! -e "$folder/$suite" ] || return 0
  rm -rf "$folder/$suite.partial"
  echo "making $folder/$suite" >&2
  mmdebstrap --quiet --variant=minbase --include="$packages" "$suite" "$folder/$suite.partial" || return 1
  mv "$folder/$suite.partial" "$folder/$suite"
}
make_root bookworm python3,python3-apt,ca-certificates,curl,libstdc++6,systemd,udev,cloud-init,ansible-core
make_root bullseye python3 || echo "no Debian 11: the mirror does not have it" >&2
