# What the deb and the rpm do before their files come.
if [ -e /opt/sluice-host/bin/activate ]; then
  echo "sluice-host: /opt/sluice-host is a Python environment that was made by hand: move it away first" >&2
  exit 1
fi
