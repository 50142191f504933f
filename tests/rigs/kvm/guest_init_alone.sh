#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# First process of a rig guest that libvirt can save and migrate: everything is in the initramfs, nothing is the
# host's. No udev: whoever plugs a device in does himself what its rule would do.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /run
mount -t devpts devpts /dev/pts
while read -r module; do insmod "$module" || echo "rig: insmod $module failed"; done </modules.list
ip link set lo up
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/ TERM=dumb
tries=0
while [ -z "$port" ] && [ $tries -lt 500 ]; do
  for candidate in /sys/class/virtio-ports/*; do
    [ "$(cat "$candidate/name" 2>/dev/null)" = org.qemu.guest_agent.0 ] && port=/dev/$(basename "$candidate")
  done
  [ -n "$port" ] || sleep 0.02
  tries=$((tries + 1))
done
echo "rig: agent on ${port:-nothing} at $(cut -d' ' -f1 /proc/uptime)"
while :; do
  /usr/sbin/qemu-ga -m virtio-serial -p "$port" -t /run -l /run/qga.log
  sleep 0.2
done
