# What the deb and the rpm do after their files are there. $FIRST is yes where Sluice was not here before.
getent group sluice >/dev/null || groupadd --system sluice

[ -e /etc/sluice/client.conf ] || install -m 644 /opt/sluice/client.conf.example /etc/sluice/client.conf

# a bundle's install.sh was here before: its links and files that would shadow the package's
if [ "$(readlink /usr/local/bin/sluice 2>/dev/null)" = /opt/sluice/bin/sluice ]; then
  rm -f /usr/local/bin/sluice
fi
if grep -q /opt/sluice/libexec /etc/udev/rules.d/70-sluice.rules 2>/dev/null; then
  rm -f /etc/udev/rules.d/70-sluice.rules
fi
rm -rf /opt/sluice/systemd

/opt/sluice/libexec/sluice-loader auto
if command -v udevadm >/dev/null; then
  udevadm control --reload 2>/dev/null || :
fi
# what our rule makes of /dev/null with the next start
if [ -d /run/udev ] && [ ! -e /dev/nvidiactl ]; then
  ln -s null /dev/nvidiactl || :
fi
if command -v systemctl >/dev/null; then
  if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
  fi
  if [ "$FIRST" = yes ]; then
    systemctl enable sluice-enrol.service sluice-enrol.timer >/dev/null 2>&1 || :
  fi
fi
# a channel that is there already gets what the rule gives to those that come
for device in /sys/bus/pci/devices/*; do
  vendor='' model=''
  read -r vendor 2>/dev/null <"$device/vendor" && read -r model 2>/dev/null <"$device/device" || continue
  [ "$vendor $model" = "0x1af4 0x1110" ] || continue
  /opt/sluice/libexec/sluice-pci-setup "$device" || :
done
