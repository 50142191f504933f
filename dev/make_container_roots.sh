#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes the image roots that tests/containers runs CUDA programs in, as root: Debian 12 and 11, Ubuntu 24.04 where
# SLUICE_UBUNTU_MIRROR names a mirror of it, and one with musl and nothing else. What is there already is kept; what no
# mirror has is done without, and said. A root of RHEL's kin is used where SLUICE_RHEL_ROOT names one.
set -eu
folder=$1
mkdir -p "$folder"
make_root() {
  local name=$1 suite=$2 packages=$3
  shift 3
  [ ! -e "$folder/$name" ] || return 0
  rm -rf "$folder/$name.partial"
  echo "making $folder/$name" >&2
  mmdebstrap --quiet --variant=minbase --include="$packages" "$suite" "$folder/$name.partial" "$@" || return 1
  mv "$folder/$name.partial" "$folder/$name"
}
make_musl() {
  [ ! -e "$folder/musl" ] || return 0
  local partial=$folder/musl.partial
  rm -rf "$partial"
  mkdir -p "$partial"/{bin,lib,etc,proc,sys,dev,run,tmp,opt}
  cp /bin/busybox "$partial/bin/busybox"
  for name in sh cat ls env sleep; do ln -s busybox "$partial/bin/$name"; done
  cp -L /lib/ld-musl-x86_64.so.1 "$partial/lib/ld-musl-x86_64.so.1"
  printf '#include <dlfcn.h>\n#include <stdio.h>\nint main(void) {\n  if (dlopen("libcuda.so.1", RTLD_NOW)) return 0;\n  puts(dlerror());\n  return 1;\n}\n' |
    musl-gcc -x c - -o "$partial/bin/opens-cuda"
  mv "$partial" "$folder/musl"
}
make_root bookworm bookworm python3
make_root bullseye bullseye python3-minimal || echo "no Debian 11: the mirror does not have it" >&2
if [ -n "${SLUICE_UBUNTU_MIRROR:-}" ]; then
  make_root noble noble python3-minimal "$SLUICE_UBUNTU_MIRROR" || echo "no Ubuntu 24.04: that mirror does not have it" >&2
fi
make_musl
