# What the deb and the rpm do before their files go, when nothing comes in their place.
if command -v systemctl >/dev/null; then
  if [ -d /run/systemd/system ]; then
    systemctl stop sluice-enrol.timer sluice-enrol.service || :
  fi
  systemctl disable sluice-enrol.service sluice-enrol.timer >/dev/null 2>&1 || :
fi
/opt/sluice/libexec/sluice-loader forget
# what our rule made of /dev/null
if [ "$(readlink /dev/nvidiactl)" = null ]; then
  rm -f /dev/nvidiactl
fi
rm -rf /opt/sluice/python/sluice_guest/__pycache__ /opt/sluice/python/sluice_guest/hooks/jax_plugins/__pycache__
