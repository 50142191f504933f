# What the deb and the rpm do before their files go, when nothing comes in their place.
if command -v systemctl >/dev/null; then
  if [ -d /run/systemd/system ]; then
    systemctl stop sluice-server.service sluice-controller.service sluice-vsphere.service || :
  fi
  systemctl disable sluice-server.service sluice-controller.service sluice-vsphere.service >/dev/null 2>&1 || :
fi
find /opt/sluice-host/lib -name __pycache__ -prune -exec rm -rf {} +
