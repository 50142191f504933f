#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs what building and testing Sluice needs on Debian 12, as root; asks apt only when something is missing.
# `install_debian.sh demo` for `make demo` (`demo-host` without its guest), `build` for the build and the tests without
# guests, `rig` for guests under libvirt too,
# `console` for Chromium,
# `rdma` for soft RoCE in guests, `containers` for podman and roots of images, `packages` for debs and rpms, `release` for images too,
# `images` for roots of distributions to install them in, `kubernetes` for a cluster of one node.
set -eu
compile="build-essential cmake ninja-build pkg-config python3-dev python3-venv libvirt-dev libibverbs-dev"
build="$compile git libgtest-dev etcd-server libvirt-clients libxml2-utils"
rig="qemu-system-x86 qemu-utils libvirt-daemon libvirt-daemon-driver-qemu busybox-static kmod iproute2 udev"
rdma="$build $rig rdma-core ibverbs-providers python3-pyverbs"
packages="dpkg-dev rpm"
release="$packages mmdebstrap buildah crun"
console="$build chromium fonts-dejavu-core"
kubernetes="$build runc containernetworking-plugins busybox-static procps util-linux iproute2 openssl"
images="$packages mmdebstrap cpio dosfstools"
containers="$build podman runc crun conmon uidmap slirp4netns mmdebstrap musl musl-tools busybox-static"
case ${1:-build} in
demo-host) wanted=$compile ;;
demo) wanted="$compile libvirt-clients libxml2-utils $rig" ;;
build) wanted=$build ;;
rig) wanted="$build $rig" ;;
console) wanted=$console ;;
rdma) wanted=$rdma ;;
packages) wanted=$packages ;;
release) wanted=$release ;;
images) wanted=$images ;;
kubernetes) wanted=$kubernetes ;;
containers) wanted=$containers ;;
*) echo "usage: $0 demo-host|demo|build|rig|console|rdma|packages|release|images|containers|kubernetes" >&2; exit 2 ;;
esac
missing=
for package in $wanted; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
  if [ "$(id -u)" != 0 ]; then
    echo "these packages are missing, and only root can install them:$missing" >&2
    exit 1
  fi
  echo "installing:$missing" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
# Workers run as a user of their own where the server is root.
if [ "$(id -u)" = 0 ] && ! getent passwd sluice-worker >/dev/null; then
  useradd --system --no-create-home --shell /usr/sbin/nologin sluice-worker
fi
# Who has rootless containers in the tests, with a range of subordinate user ids.
if [ "${1:-build}" = containers ] && [ "$(id -u)" = 0 ] && ! getent passwd sluice-rootless >/dev/null; then
  useradd --create-home --shell /usr/sbin/nologin sluice-rootless
fi
