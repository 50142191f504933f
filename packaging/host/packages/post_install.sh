# What the deb and the rpm do after their files are there. $FIRST is yes where Sluice was not here before.
shell=/usr/sbin/nologin
[ -x "$shell" ] || shell=/sbin/nologin
for account in sluice-worker sluice-controller; do
  getent passwd $account >/dev/null ||
    useradd --system --user-group --no-create-home --shell "$shell" $account
done
# programs of this host use the pool through the server's socket; this group is whom `sluice run` is for
getent group sluice >/dev/null || groupadd --system sluice

home=/opt/sluice-host
find $home/lib -name __pycache__ -prune -exec rm -rf {} +
for python in $home/bin/python3.*; do
  [ ! -x "$python" ] || "$python" -I -m compileall -q -f $home/lib/python3.11/site-packages >/dev/null 2>&1 || :
done

if command -v systemctl >/dev/null && [ -d /run/systemd/system ]; then
  systemctl daemon-reload || :
  if [ "$FIRST" != yes ]; then
    # sessions go on: workers are no part of these services
    systemctl try-restart sluice-controller.service sluice-server.service sluice-vsphere.service || :
  fi
fi
if [ "$FIRST" = yes ]; then
  echo "sluice-host: \`sluice init\` makes this host a part of a pool"
fi
