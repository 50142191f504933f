#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the programs of the Kubernetes of tests/rigs/kubernetes from Go modules: etcd, containerd with its shim, helm, all of
# Kubernetes as one program that is called by the names of its parts, and Kueue with its chart. Each is built once: where
# TARGET has it from the same sources, nothing is done. `build_kubernetes.sh VENV TARGET`; SLUICE_GO_JOBS (2) compile at
# once; about ten minutes and 5 GB of Go's build cache from nothing. SLUICE_BUILD_LOCK names a file to lock for each step,
# where others build, too.
set -euo pipefail
venv=$(realpath -s "$1") target=$(realpath -m "$2")
go=$("$(dirname "$0")/find_go.sh" "$venv" 26)
sources=$(realpath "$(dirname "$0")/../tests/rigs/kubernetes/programs")
mkdir -p "$target"
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-p=${SLUICE_GO_JOBS:-2} -buildvcs=false -trimpath -mod=readonly"
kubernetes=$(sed -n 's#^\tk8s.io/kubernetes v##p' "$sources/kube/go.mod")
version=k8s.io/component-base/version
minor=${kubernetes#*.}
link="-s -w -X $version.gitVersion=v$kubernetes -X $version.gitMajor=${kubernetes%%.*} -X $version.gitMinor=${minor%%.*}"
link="$link -X $version.gitTreeState=clean -X k8s.io/client-go/pkg/version.gitVersion=v$kubernetes"
# What says nothing for long is taken for hung (.ci/budgets.toml): a line for every hundred packages, and what is no package.
compile() { # ARGUMENT…
  alone nice -n "${SLUICE_GO_NICE:-5}" "$go" build -v -ldflags "$link" "$@" 2>&1 |
    awk '/[ :#]/ { print } !/[ :#]/ && ++n % 100 == 0 { print "compiled " n " packages" } { fflush() }'
}
alone() { if [ -n "${SLUICE_BUILD_LOCK:-}" ]; then flock "$SLUICE_BUILD_LOCK" "$@"; else "$@"; fi; }
build() { # MODULE PROGRAM PACKAGE [PACKAGE to compile before…, a step each]
  local module=$1 program=$2 package=$3 stamp started=$SECONDS
  shift 3
  stamp=$({ cat "$sources/$module"/go.* "$sources/$module"/*.go 2>/dev/null; echo "$link"; } | sha256sum | cut -c1-16)
  [ -x "$target/$program" ] && [ "$(cat "$target/.$program" 2>/dev/null)" = "$stamp" ] && return
  cd "$sources/$module"
  "$go" mod download
  echo "building $program"
  for part in "$@"; do echo "compiling $part" && compile "$part"; done
  compile -o "$target/$program" "$package"
  echo "$stamp" >"$target/.$program"
  echo "built $program in $((SECONDS - started)) s, $(du -m "$target/$program" | cut -f1) MB"
}
build etcd etcd .
for program in containerd containerd-shim-runc-v2 ctr; do build node $program github.com/containerd/containerd/v2/cmd/$program; done
build kube kube . k8s.io/client-go/kubernetes k8s.io/kubernetes/cmd/kube-apiserver/app k8s.io/kubectl/pkg/cmd \
  k8s.io/kubernetes/cmd/kubelet/app k8s.io/kubernetes/cmd/kube-controller-manager/app
build helm helm helm.sh/helm/v4/cmd/helm # shares most of its packages with kubectl
build kueue kueue sigs.k8s.io/kueue/cmd/kueue k8s.io/client-go/kubernetes sigs.k8s.io/kueue/pkg/cache/scheduler
[ -d "$target/kueue-chart" ] || {
  chart=$(cd "$sources/kueue" && "$go" list -m -f '{{.Dir}}' sigs.k8s.io/kueue)/charts/kueue
  cp -r --no-preserve=mode "$chart" "$target/kueue-chart.new" && mv "$target/kueue-chart.new" "$target/kueue-chart"
}
for part in kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do ln -sf kube "$target/$part"; done
gcc -Os -static -s -o "$target/pause" "$sources/pause.c"
