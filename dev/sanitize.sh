#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything in native/ with a sanitizer and runs its tests: dev/sanitize.sh address,undefined | thread [ctest options]
# A folder of its own for each (build/sanitize-…); `make sanitize` runs both. Tests that cannot run under one of them say so by skipping.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  address,undefined | thread) san=$1 ;;
  *)
    echo "usage: dev/sanitize.sh address,undefined|thread [ctest options]" >&2
    exit 2
    ;;
esac
shift
build=build/sanitize-${san%%,*}
python=${PYTHON:-$PWD/.venv/bin/python}
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)

cmake -S native -B "$build" "${generator[@]}" -DSLUICE_PYTHON="$python" -DSLUICE_SANITIZE="$san" >/dev/null
cmake --build "$build" -j "${JOBS:-2}"

export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1:detect_stack_use_after_return=1:${ASAN_OPTIONS:-}
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:${UBSAN_OPTIONS:-}
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/dev/tsan.supp:${TSAN_OPTIONS:-}

left_out=()
if [[ $san == thread ]]; then
  # These map the windows of device addresses, which lie where ThreadSanitizer keeps its shadow.
  left_out=(-LE '^maps_windows$' -E '^softgpu\.Memory\.(Windows|HostMemory)')
fi
ctest --test-dir "$build" --output-on-failure -j "${JOBS:-2}" "${left_out[@]}" "$@"
