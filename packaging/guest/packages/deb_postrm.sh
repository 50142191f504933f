#!/bin/sh
set -e
case $1 in
  remove)
    ldconfig
    rmdir /opt/sluice 2>/dev/null || :
    ;;
  purge)
    rm -f /etc/sluice/client.conf /etc/sluice/token /etc/sluice/enrolled.json
    # a host of the pool has its CA there as well
    [ -e /etc/sluice/server.conf ] || rm -f /etc/sluice/pool-ca.crt
    rmdir /etc/sluice 2>/dev/null || :
    ;;
esac
