#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# First process of the rig's own mount and pid namespaces, started by rig.py: starts each component and starts it again
# when it ends. When this process ends, the kernel ends all that is in the namespaces, pods included.
# Environment, from rig.py: RUN (state), PKI, LOG, NODE, CGROUP, the ports, BUILT_IN, FEATURE_GATES (A=true,B=false).
set -uo pipefail
mount --make-rprivate / && mount --make-rshared / # apart from the machine's mounts, shared with the pods
# Paths that are built into the programs: folders of the rig's.
for d in $BUILT_IN; do
  mkdir -p "$d" "$RUN/own/${d##*/}"
  mount --bind "$RUN/own/${d##*/}" "$d"
done
# The kubelet would set these for the whole machine: it is shown files that read as it wants.
mkdir -p "$RUN/sys"
while read -r key value; do
  echo "$value" >"$RUN/sys/${key//\//_}"
  mount --bind "$RUN/sys/${key//\//_}" "/proc/sys/$key"
done <<-END
	vm/overcommit_memory 1
	vm/panic_on_oom 0
	kernel/panic 10
	kernel/panic_on_oops 1
	kernel/keys/root_maxkeys 1000000
	kernel/keys/root_maxbytes 25000000
END
# cgroup version 1: a folder of the rig's in every hierarchy, below which all pods are. Where processors are short pods come
# first: most ask for next to nothing, and all together would have as much of the time as one process of the machine's.
for d in /sys/fs/cgroup/*/; do
  [ -e "$d/cgroup.procs" ] || continue
  mkdir -p "$d$CGROUP"
  if [ -e "$d/cpuset.cpus" ]; then
    cat "$d/cpuset.cpus" >"$d$CGROUP/cpuset.cpus"
    cat "$d/cpuset.mems" >"$d$CGROUP/cpuset.mems"
  fi
  if [ -e "$d/cpu.shares" ]; then echo 16384 >"$d$CGROUP/cpu.shares"; fi
done
start() { # NAME COMMAND…: starts it again whenever it ends, unless $RUN/NAME.stopped is there
  local name=$1
  shift
  while :; do
    while [ -e "$RUN/$name.stopped" ]; do sleep 0.1; done
    "$@" >>"$LOG/$name.log" 2>&1 &
    echo $! >"$RUN/$name.nspid"
    wait $!
    echo "$(date +%T) $name ended, status $?"
    sleep 0.3
  done &
}
gates=${FEATURE_GATES:+--feature-gates=$FEATURE_GATES}
start etcd etcd --name rig --data-dir "$RUN/etcd" --unsafe-no-fsync --log-level warn \
  --listen-client-urls "http://127.0.0.1:$ETCD_PORT" --advertise-client-urls "http://127.0.0.1:$ETCD_PORT" \
  --listen-peer-urls "http://127.0.0.1:$ETCD_PEER" --initial-advertise-peer-urls "http://127.0.0.1:$ETCD_PEER" \
  --initial-cluster "rig=http://127.0.0.1:$ETCD_PEER"
start kube-apiserver kube-apiserver --etcd-servers "http://127.0.0.1:$ETCD_PORT" \
  --bind-address 127.0.0.1 --secure-port "$API_PORT" --advertise-address 127.0.0.1 --endpoint-reconciler-type none \
  --tls-cert-file "$PKI/apiserver.crt" --tls-private-key-file "$PKI/apiserver.key" --client-ca-file "$PKI/ca.crt" \
  --kubelet-client-certificate "$PKI/kubelet-client.crt" --kubelet-client-key "$PKI/kubelet-client.key" \
  --kubelet-preferred-address-types InternalIP,Hostname \
  --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$PKI/sa.key" \
  --service-account-signing-key-file "$PKI/sa.key" --token-auth-file "$PKI/tokens.csv" \
  --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
  --allow-privileged --service-cluster-ip-range 10.96.0.0/24 --profiling=false $gates
start containerd containerd --config "$RUN/containerd.toml"
# A node that says nothing is gone after 8 s instead of 50; whoever is on it has the time that its tolerations say.
start kube-controller-manager kube-controller-manager --node-monitor-grace-period 8s --node-monitor-period 1s \
  --kubeconfig "$RUN/kcm.kubeconfig" --leader-elect=false \
  --bind-address 127.0.0.1 --secure-port "$KCM_PORT" --root-ca-file "$PKI/ca.crt" --cert-dir "$RUN/kcm" \
  --service-account-private-key-file "$PKI/sa.key" --use-service-account-credentials --kube-api-qps 1000 \
  --kube-api-burst 1000 --flex-volume-plugin-dir "$RUN/volume-plugins" --profiling=false $gates
# As docs/kubernetes.md has it for clusters without DRA.
start kube-scheduler kube-scheduler --pod-max-in-unschedulable-pods-duration 15s --config "$RUN/scheduler.yaml" --bind-address 127.0.0.1 --secure-port "$SCHED_PORT" \
  --cert-dir "$RUN/sched" $gates
start kubelet kubelet --config "$RUN/kubelet.yaml" --kubeconfig "$RUN/kubelet.kubeconfig" --hostname-override "$NODE" --v 2
wait
