#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# First process of an instance of the OpenStack rig: where there is a channel to the pool, it runs the CUDA program
# and says on the console how that ended.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/shm /tmp /root
mount -t tmpfs tmpfs /dev/shm
while read -r module; do insmod "$module" || echo "rig: insmod $module failed"; done </modules.list
ip link set lo up
channel=none
for device in /sys/bus/pci/devices/*; do
  [ "$(cat "$device/vendor"):$(cat "$device/device")" = 0x1af4:0x1110 ] && channel=$(basename "$device")
done
echo "rig: up, channel $channel"
if [ "$channel" != none ]; then
  export HOME=/root LD_LIBRARY_PATH=/sluice/lib GLIBC_TUNABLES=glibc.cpu.hwcaps=-ERMS
  /sluice/program 10000
  echo "rig: program ended with $?"
fi
while :; do sleep 3600; done
