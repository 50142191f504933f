#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the programs of the Kubernetes of tests/rigs/kubernetes from Go modules: etcd, containerd with its shim and
# ctr, helm, all of Kubernetes as one program that is called by the names of its parts, and Kueue with its chart. One
# module (programs/go.mod) requires them all, so that each package is compiled once, and one `go build` has both
# processors busy while a program is linked. Where TARGET has them from the same sources, nothing is done.
# `build_kubernetes.sh VENV TARGET`; SLUICE_GO_JOBS (2) compile at once. SLUICE_BUILD_LOCK names a file to lock for each
# step, where others build, too: the build is in several steps then.
set -euo pipefail
venv=$(realpath -s "$1") target=$(realpath -m "$2")
go=$("$(dirname "$0")/find_go.sh" "$venv" 26)
sources=$(realpath "$(dirname "$0")/../tests/rigs/kubernetes/programs")
node=github.com/containerd/containerd/v2/cmd kueue=sigs.k8s.io/kueue trainer=github.com/kubeflow/trainer/v2
jobs=$kueue/pkg/controller/jobs
packages=(./etcd "$node"/{containerd,containerd-shim-runc-v2,ctr} ./kube helm.sh/helm/v4/cmd/helm ./kueue)
steps=(go.etcd.io/etcd/server/v3/etcdmain "$node/containerd/builtins" k8s.io/client-go/kubernetes
  k8s.io/kubernetes/cmd/{kube-apiserver,kubelet,kube-controller-manager}/app helm.sh/helm/v4/pkg/cmd
  "$kueue/pkg/cache/scheduler" "$jobs/statefulset")
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-p=${SLUICE_GO_JOBS:-2} -buildvcs=false -trimpath -mod=readonly"
kubernetes=$(sed -n 's#^\tk8s.io/kubernetes v##p' "$sources/go.mod")
version=k8s.io/component-base/version
minor=${kubernetes#*.}
link="-s -w -X $version.gitVersion=v$kubernetes -X $version.gitTreeState=clean"
link="$link -X $version.gitMajor=${kubernetes%%.*} -X $version.gitMinor=${minor%%.*}"
link="$link -X k8s.io/client-go/pkg/version.gitVersion=v$kubernetes"
# What makes a program faster or shows its lines to a debugger costs a quarter of the processor time to compile it.
quickly="all=-dwarf=false -l"
alone() { if [ -n "${SLUICE_BUILD_LOCK:-}" ]; then flock "$SLUICE_BUILD_LOCK" "$@"; else "$@"; fi; }
# What says nothing for long is taken for hung (.ci/budgets.toml): a line for every hundred packages, and what is none.
compile() { # ARGUMENT…
  alone nice -n "${SLUICE_GO_NICE:-5}" "$go" build -v -gcflags "$quickly" -ldflags "$link" "$@" 2>&1 |
    awk '/[ :#]/ { print } !/[ :#]/ && ++n % 100 == 0 { print "compiled " n " packages" } { fflush() }'
}
folder_of() { "$go" list -m -f '{{.Dir}}' "$1"; } # MODULE: where Go has it
copy() { cp -r --no-preserve=mode "$@"; }         # the modules of Go's cache are read-only

stamp=$({ cat "$sources"/go.* "$sources"/*/*.go; echo "$quickly $link ${packages[*]}"; } | sha256sum | cut -c1-16)
if [ "$(cat "$target/.stamp" 2>/dev/null)" != "$stamp" ]; then
  started=$SECONDS
  rm -rf "$target"
  mkdir -p "$target"
  cp -r "$sources" "$target/sources"
  cd "$target/sources"
  "$go" mod download
  echo "modules are here after $((SECONDS - started)) s"
  copy "$(folder_of $kueue)/charts/kueue" "$target/kueue-chart"
  # Kueue's main with its integrations of Kubernetes' own kinds: those of others' bring half of what it compiles.
  copy "$(folder_of $kueue)/cmd/kueue" kueue
  grep -q "_ \"$jobs\"" kueue/main.go
  sed -i "s#_ \"$jobs\"#_ \"$jobs/job\"; _ \"$jobs/deployment\"; _ \"$jobs/statefulset\"#" kueue/main.go
  # Kueue names a kind of Kubeflow's trainer. That module's descriptions for API servers, which Kueue does not use, name
  # types of Kubernetes 1.35 that are gone: it is built without them.
  copy "$(folder_of $trainer)" trainer
  rm trainer/pkg/apis/trainer/v1alpha1/zz_generated.openapi.go
  "$go" mod edit -replace "$trainer=./trainer"
  for step in ${SLUICE_BUILD_LOCK:+"${steps[@]}"}; do echo "compiling $step" && compile "$step"; done
  compile -o "$target/" "${packages[@]}"
  cd "$target"
  rm -rf sources
  for part in kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do ln -sf kube "$part"; done
  echo "$stamp" >.stamp
  echo "built in $((SECONDS - started)) s:"
  du -m etcd containerd* ctr kube helm kueue
fi
gcc -Os -static -s -o "$target/pause" "$sources/pause.c"
