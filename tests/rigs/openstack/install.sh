#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the OpenStack rig runs, as root on Debian 12: MariaDB, RabbitMQ, libvirt and QEMU by apt,
# OpenStack 2026.2 by pip into a virtual environment of its own (about three minutes, 700 MB).
# `install.sh VENV`; asks apt and pip only when something is missing, and leaves no Debian service running.
set -eu
venv=$1
here=$(cd "$(dirname "$0")" && pwd)
packages="mariadb-server rabbitmq-server genisoimage qemu-utils"
missing=
for package in $packages; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
  if [ "$(id -u)" != 0 ]; then
    echo "these packages are missing, and only root can install them:$missing" >&2
    exit 1
  fi
  echo "installing:$missing" >&2
  export DEBIAN_FRONTEND=noninteractive
  # Debian starts services when it installs them; the rig runs its own on other ports.
  policy=/usr/sbin/policy-rc.d
  made=
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    made=yes
  fi
  trap '[ -z "$made" ] || rm -f "$policy"' EXIT
  apt-get update -qq
  apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends $missing >/dev/null
fi
wanted=$(sha256sum "$here/requirements.txt" | cut -d' ' -f1)
if [ "$(cat "$venv/.requirements" 2>/dev/null)" != "$wanted" ]; then
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt" \
    "libvirt-python==$(pkg-config --modversion libvirt)"
  echo "$wanted" >"$venv/.requirements"
fi
# Another release of Nova, to hold the driver against: its code alone, on the libraries of the first.
other=$(dirname "$venv")/nova-older
if [ ! -d "$other/nova" ]; then
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$other" nova==32.0.0
fi
