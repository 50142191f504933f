#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds native/ with a sanitizer and runs its tests: dev/sanitize.sh address,undefined | thread  [all | threads | memory]  [ctest options]
# A folder of its own for each (build/sanitize-…). `threads` and `memory` build and run only the tests with that label (tests/native/CMakeLists.txt):
# `make test-threads` and `make test-memory`, which .ci/run has; `make sanitize` runs all under both. `memory` fuzzes the decoder besides, for
# SLUICE_FUZZ_SECONDS (30). A test that cannot run under a sanitizer skips itself and says why: those are listed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  address,undefined | thread) san=$1 ;;
  *)
    echo "usage: dev/sanitize.sh address,undefined|thread [all|threads|memory] [ctest options]" >&2
    exit 2
    ;;
esac
shift
part=all
case "${1:-}" in
  all | threads | memory) part=$1 && shift ;;
esac
build=build/sanitize-${san%%,*}
python=${PYTHON:-$PWD/.venv/bin/python}
jobs=${JOBS:-2}
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
target=() chosen=()
if [[ $part != all ]]; then
  target=(--target "tests_of_$part")
  chosen=(-L "$part")
fi

# A part that is built from nothing each time, on a fresh machine, is built sooner with the standard library's headers read once.
precompile=OFF
if [[ $part != all ]] && ! command -v ccache >/dev/null; then precompile=ON; fi
cmake -S native -B "$build" "${generator[@]}" -DSLUICE_PYTHON="$python" -DSLUICE_SANITIZE="$san" -DSLUICE_PRECOMPILE=$precompile >/dev/null
cmake --build "$build" -j "$jobs" "${target[@]}"

# Locals that are used after their function's end cost nearly half of the time to look for.
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1:detect_stack_use_after_return=$([[ $part == all ]] && echo 1 || echo 0):${ASAN_OPTIONS:-}
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:${UBSAN_OPTIONS:-}
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:${TSAN_OPTIONS:-}

log=$build/Testing/Temporary/LastTest.log
rm -f "$log"
# One that hangs is ended by itself, and named, long before everything is.
ctest --test-dir "$build" --no-tests=error --output-on-failure --timeout 300 -j "$jobs" "${chosen[@]}" "$@"
# gtest writes the place, the reason and then the test's name.
awk -v san="$san" '/: Skipped$/ { getline reason; getline; sub(/^\[  SKIPPED \] /, ""); sub(/ \(.*/, "")
  print "not run under " san ": " $0 ": " reason }' "$log"

if [[ $part == memory ]]; then
  seconds=${SLUICE_FUZZ_SECONDS:-30}
  echo "fuzzing the decoder for $seconds s in $jobs processes, and the parsers in one (build/sanitize-address/fuzz-*.log)"
  fuzzers=()
  for ((i = 0; i < jobs; ++i)); do
    "$build/bin/fuzz_decoder" --seconds "$seconds" >"$build/fuzz-$i.log" 2>&1 &
    fuzzers+=($!)
  done
  "$build/bin/fuzz_parsers" --seconds "$seconds" >"$build/fuzz-$jobs.log" 2>&1 &
  fuzzers+=($!)
  failed=0
  for i in "${!fuzzers[@]}"; do
    if ! wait "${fuzzers[$i]}"; then
      failed=1
      program=fuzz_decoder
      ((i < jobs)) || program=fuzz_parsers
      grep -m1 -n -E 'ERROR|runtime error' "$build/fuzz-$i.log" >&2 || true
      tail -n 100 "$build/fuzz-$i.log" >&2
      echo "again with: $build/bin/$program $(sed -n 's/^\([0-9]*\) inputs, seed /\1 /p' "$build/fuzz-$i.log" | tail -1)" >&2
    else
      tail -n 1 "$build/fuzz-$i.log"
    fi
  done
  exit "$failed"
fi
