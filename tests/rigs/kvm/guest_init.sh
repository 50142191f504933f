#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# First process of a rig guest: the host's root by 9p, read-only, under a tmpfs overlay; then udev and the
# guest agent. Words of the kernel command line: rig_agent=, rig_modules= and rig_checkout=PATH (host paths).
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
while read -r module; do insmod "$module" || echo "rig: insmod $module failed"; done </modules.list
for word in $(cat /proc/cmdline); do
  case $word in
    rig_agent=*) agent=${word#*=} ;;
    rig_modules=*) modules=${word#*=} ;;
    rig_checkout=*) checkout=${word#*=} ;;
    rig_host=*) name=${word#*=} ;;
  esac
done
hostname "${name:-guest}"
ip link set lo up

# The root is cached, so that programs start fast; /host is not, since files change on the host while guests run.
options=trans=virtio,version=9p2000.L,msize=512000,ro
mount -t 9p -o $options,cache=loose hostroot /ro || echo "rig: no root"
mkdir -p /fresh
mount -t 9p -o $options,cache=none hostnow /fresh || echo "rig: no /host"
mount -t tmpfs tmpfs /rw
mkdir -p /rw/upper /rw/work
mount -t overlay -o lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work overlay /newroot || echo "rig: no overlay"
for folder in proc sys dev host tmp run opt var/tmp lib/modules etc/sluice; do mkdir -p "/newroot/$folder"; done
for folder in proc sys dev; do mount --rbind "/$folder" "/newroot/$folder"; done
mount --rbind /fresh /newroot/host
mount -t tmpfs tmpfs /newroot/run
mount -t tmpfs tmpfs /newroot/opt # what is installed on the host, or by a rig beside this one, is not here
mount -t tmpfs -o mode=1777 tmpfs /newroot/tmp
[ -n "$modules" ] && mount --bind "/ro$modules" /newroot/lib/modules
# What is covered above is the guest's own: a checkout that lies there is bound in again, and the agent has another name.
case $checkout in
  /tmp/* | /run/*) mkdir -p "/newroot$checkout" && mount --bind "/ro$checkout" "/newroot$checkout" ;;
esac
: >/newroot/run/rig-agent
mount --bind "/ro$agent" /newroot/run/rig-agent || echo "rig: no agent at $agent"
echo "rig: root at $(cut -d' ' -f1 /proc/uptime)"

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
chroot /newroot /lib/systemd/systemd-udevd --daemon

tries=0
while [ -z "$port" ] && [ $tries -lt 500 ]; do
  for candidate in /sys/class/virtio-ports/*; do
    [ "$(cat "$candidate/name" 2>/dev/null)" = org.qemu.guest_agent.0 ] && port=/dev/$(basename "$candidate")
  done
  [ -n "$port" ] || sleep 0.02
  tries=$((tries + 1))
done
echo "rig: agent on ${port:-nothing} at $(cut -d' ' -f1 /proc/uptime)"
# An agent that dies is started again: a test may have filled the guest's memory.
while :; do
  chroot /newroot /run/rig-agent -m virtio-serial -p "$port" -t /run -l /run/qga.log
  sleep 0.2
done
