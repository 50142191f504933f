#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prints which lines the tests run: of Python with coverage.py, processes that tests start among them, and of C++ with
# gcov in a build of its own (build/coverage/native): dev/coverage.sh [pytest's arguments]. `make coverage` calls it.
# Both tables are kept in build/coverage. A test that fails is said at the end, behind the tables.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$PWD/.venv/bin/python}
out=$PWD/build/coverage
jobs=${JOBS:-2}
rm -rf "$out/python"
mkdir -p "$out/python" "$out/native"
failed=0

PYTHONPATH=$PWD/python "$python" -m coverage run -m pytest -q -n "${TEST_JOBS:-4}" --dist loadfile --no-loadscope-reorder \
  -m "not vm and not gpu and not cluster and not chaos and not vsphere and not openstack and not guest_images" \
  "${@:-tests}" || failed=1
"$python" -m coverage combine --quiet
"$python" -m coverage report | tee "$out/python.txt"

if [[ ${SLUICE_COVERAGE_NATIVE:-1} != 0 ]]; then
  generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  cmake -S native -B "$out/native" "${generator[@]}" -DSLUICE_PYTHON="$python" -DSLUICE_TESTS=ON \
    -DCMAKE_CXX_FLAGS="--coverage -fprofile-update=atomic" -DCMAKE_C_FLAGS="--coverage -fprofile-update=atomic" >/dev/null
  cmake --build "$out/native" -j "$jobs"
  find "$out/native" -name '*.gcda' -delete
  ctest --test-dir "$out/native" --output-on-failure -j "$jobs" || failed=1
  "$python" -m gcovr --root . --filter native/ --exclude 'native/codegen/' -j "$jobs" \
    --gcov-ignore-errors=no_working_dir_found --gcov-ignore-parse-errors=all "$out/native" | tee "$out/native.txt"
fi
exit "$failed"
