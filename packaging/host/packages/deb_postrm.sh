#!/bin/sh
set -e
case $1 in
  remove)
    if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi
    ;;
  purge)
    # workers, doorbell and arbiter, which outlive the services
    if [ -d /run/systemd/system ]; then systemctl stop 'sluice-*.scope' || :; fi
    rm -rf /run/sluice
    rm -rf /var/lib/sluice /var/lib/private/sluice /var/lib/sluice-server
    rm -rf /var/log/sluice /var/log/private/sluice
    rm -rf /etc/sluice/accounts /etc/sluice/ca /etc/sluice/tls
    rm -f /etc/sluice/init.conf /etc/sluice/first-tokens.json /etc/sluice/node.token /etc/sluice/pool-ca.crt
    rmdir /etc/sluice 2>/dev/null || :
    ;;
esac
