#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs Sluice's guest runtime from this unpacked bundle, or removes it again. Run as root; running it again
# upgrades; programs that run are not disturbed.
#
#   ./install.sh [--prefix /opt/sluice] [--root DIR] [--ldconfig | --no-ldconfig] [--uninstall]
#
# --no-ldconfig keeps our libcuda.so.1 out of the loader's cache: only `sluice run CMD` then uses it. That is so
# by itself where NVIDIA's driver is installed, unless --ldconfig is given. Either is kept when it is run again.
# --root installs into an image mounted at DIR and touches nothing of this machine.
set -eu

prefix=/opt/sluice root= ldconfig=auto uninstall=no
while [ $# -gt 0 ]; do
  case $1 in
    --prefix) prefix=$2; shift ;;
    --prefix=*) prefix=${1#*=} ;;
    --root) root=$2; shift ;;
    --root=*) root=${1#*=} ;;
    --ldconfig) ldconfig=on ;;
    --no-ldconfig) ldconfig=off ;;
    --uninstall) uninstall=yes ;;
    -h | --help) sed -n '3,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "install.sh: $1 is unknown (see --help)" >&2; exit 2 ;;
  esac
  shift
done
case $prefix in /*) ;; *) echo "install.sh: --prefix must be an absolute path" >&2; exit 2 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
group=sluice
rules=/etc/udev/rules.d/70-sluice.rules

fail() { echo "install.sh: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || [ -n "$root" ] || fail "run it as root"

refresh_udev() { [ -n "$root" ] || ! command -v udevadm >/dev/null || udevadm control --reload 2>/dev/null || true; }
# What our rule makes of /dev/null with the next start.
link_device_file() {
  [ -n "$root" ] || [ ! -d /run/udev ] || [ -e /dev/nvidiactl ] || ln -s null /dev/nvidiactl || true
}

if [ -e "$root$prefix/packaged" ]; then
  fail "the package sluice-guest ($(cat "$root$prefix/packaged")) is installed in $root$prefix: upgrade or remove that"
fi

if [ $uninstall = yes ]; then
  [ -e "$root$prefix/libexec/sluice-pci-setup" ] || fail "nothing of Sluice is installed in $root$prefix"
  sh "$here/libexec/sluice-loader" forget "$prefix" "$root"
  rm -rf "$root$prefix/lib" "$root$prefix/bin" "$root$prefix/libexec" "$root$prefix/python" "$root$prefix/systemd" "$root$prefix/VERSION"
  rmdir "$root$prefix" 2>/dev/null || echo "install.sh: $root$prefix holds other files, which are kept" >&2
  rm -f "$root$rules"
  [ "$(readlink "$root/usr/local/bin/sluice" 2>/dev/null)" = "$prefix/bin/sluice" ] && rm -f "$root/usr/local/bin/sluice"
  refresh_udev
  [ -n "$root" ] || [ "$(readlink /dev/nvidiactl)" != null ] || rm -f /dev/nvidiactl
  echo "removed $prefix; /etc/sluice/client.conf and the group $group are kept"
  exit 0
fi

[ "$(uname -m)" = x86_64 ] || fail "this bundle is for x86_64, this machine is $(uname -m)"
[ -e "$here/lib/libcuda.so.1" ] || fail "$here is no unpacked bundle (lib/libcuda.so.1 is missing)"

# Copied beside and moved into place: each file changes at once, and whoever has the old one open keeps it.
new=$root$prefix/.new
rm -rf "$new"
mkdir -p "$new" "$root$prefix/lib" "$root$prefix/bin" "$root$prefix/libexec"
cp -R "$here/lib" "$here/bin" "$here/libexec" "$here/python" "$here/VERSION" "$new/"
chmod -R u=rwX,go=rX "$new"
for folder in lib bin libexec; do
  chmod 755 "$new/$folder"/*
  for archive in "$new/$folder"/*.a; do
    [ ! -e "$archive" ] || chmod 644 "$archive"
  done
  for inner in "$new/$folder"/*/; do # mv puts no folder in another's place
    [ ! -d "$inner" ] || rm -rf "$root$prefix/$folder/$(basename "$inner")"
  done
  mv -f "$new/$folder"/* "$root$prefix/$folder/"
done
rm -rf "$root$prefix/python"
mv "$new/python" "$root$prefix/python"
mv -f "$new/VERSION" "$root$prefix/VERSION"
rm -rf "$new"
mkdir -p "$root/usr/local/bin"
ln -sfn "$prefix/bin/sluice" "$root/usr/local/bin/sluice"

if [ -e "$root/etc/sluice/client.conf" ]; then
  settings=client.conf.dist
else
  settings=client.conf
fi
mkdir -p "$root/etc/sluice"
cp "$here/etc/client.conf" "$root/etc/sluice/$settings"
chmod 644 "$root/etc/sluice/$settings"

if ! grep -q "^$group:" "$root/etc/group" 2>/dev/null; then
  if [ -z "$root" ] && command -v groupadd >/dev/null; then
    groupadd -r "$group"
  elif [ -z "$root" ] && command -v addgroup >/dev/null; then
    addgroup -S "$group" 2>/dev/null || addgroup --system "$group"
  else
    chroot "${root:-/}" groupadd -r "$group" || fail "cannot make the group $group: make it and run this again"
  fi
fi

mkdir -p "$root$prefix/systemd"
for unit in sluice-enrol.service sluice-enrol.timer; do # `systemctl enable` takes them from there
  sed "s#@PREFIX@#$prefix#g" "$here/etc/$unit" >"$root$prefix/systemd/$unit"
done
mkdir -p "$root/etc/udev/rules.d"
sed "s#@PREFIX@#$prefix#g" "$here/etc/70-sluice.rules" >"$root$rules.new"
mv -f "$root$rules.new" "$root$rules"
sh "$here/libexec/sluice-loader" $ldconfig "$prefix" "$root"
refresh_udev
link_device_file

# A channel that is there already gets what the rule gives to those that come.
if [ -z "$root" ]; then
  for device in /sys/bus/pci/devices/*; do
    vendor= model=
    read -r vendor 2>/dev/null <"$device/vendor" && read -r model 2>/dev/null <"$device/device" || continue
    [ "$vendor $model" = "0x1af4 0x1110" ] || continue
    "$prefix/libexec/sluice-pci-setup" "$device" || true
  done
fi
echo "installed Sluice $(cat "$here/VERSION") in $root$prefix"
echo "next: add the users of vGPUs to the group $group (usermod -aG $group NAME), then: sluice check"
