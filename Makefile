# SPDX-License-Identifier: Apache-2.0
# What can be done with a checkout. `make demo` and `make test` install what they need on a fresh Debian 12 (as root).

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
BUILD := build/native
JOBS ?= 2
CTEST_JOBS ?= 3 # the longest of them waits for half a minute
TEST_JOBS ?= 4 # files of tests beside one another: they wait more than they compute
GUEST_JOBS ?= 2 # the same, of those with guests
KUBERNETES_JOBS ?= 2 # the same, each with a Kubernetes of its own
NO_RIG := not vm and not gpu and not cluster and not chaos and not vsphere and not openstack and not guest_images and not containers and not kubernetes and not console and not rdma and not releases
ALONE = $(PY) -m pytest $(PYTEST_FLAGS) -q -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder -m "$(NO_RIG)"
PYTEST_FLAGS ?= # .ci/run: a test that failed runs once more, and is named at the end; CTEST_FLAGS, too
DEMO_JOBS ?= $(shell nproc)
GPU_PYTHON ?= 3.12 # of the machine that gpu-host's archive is for
ifneq ($(words $(CURDIR)),1)
$(error The path "$(CURDIR)" has spaces, with which make and several tools do not work: move the checkout to one without)
endif
export PYTHONPATH := $(CURDIR)/python
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
unexport PYTHONDONTWRITEBYTECODE # hundreds of tests start a Python: each would compile all that it imports

.PHONY: help demo test test-rigs test-guests prepare-rigs test-chaos test-rdma test-vsphere test-openstack test-kubernetes test-guest-images test-containers test-console screenshots test-gpu test-threads test-memory bench lint tidy coverage format sanitize native programs python guest-bundle guest-packages host-packages release release-again test-release images gpu-host release-data docs clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: ## the main job, in a guest and on the host, with a table at its end (as root; GUEST=no: only the host's part)
	@JOBS=$(DEMO_JOBS) $(PYTHON) tests/demo/prepare.py $(if $(filter no,$(GUEST)),--without-guest)

test: build/.base programs ## unit tests and tests with real processes, in less than 20 minutes on two cores
	$(MAKE) -j 2 native lint # mypy has one core busy
	ctest --test-dir $(BUILD) $(CTEST_FLAGS) --output-on-failure -j$(CTEST_JOBS)
	$(ALONE) --ignore tests/withstand tests

test-withstand: build/.base programs native ## what sessions must withstand: killed, cut, suspended, moved, more memory than the card has; some ten minutes
	$(ALONE) tests/withstand

test-rigs: test-guests test-chaos ## tests with real guests under libvirt, and what the system must withstand

test-guests: build/.rig programs native guest-bundle
	$(PY) -m pytest $(PYTEST_FLAGS) -q --durations=12 -n $(GUEST_JOBS) --dist loadfile --basetemp=$$(mktemp -d /tmp/guests-XXXX) -m "vm or cluster" tests # sockets' paths are short

# What the rigs install and compile, together, as much of it waits for the network: first what shares apt and the venv.
prepare-rigs: build/.base
	dev/install_debian.sh rig
	dev/install_debian.sh images
	dev/install_debian.sh containers
	$(PY) dev/install_requirements.py vsphere openstack
	$(MAKE) -j 3 build/.rig build/.vsphere build/.openstack build/.images build/.containers build/.host-roots guest-bundle

test-rdma: build/.rdma programs native ## sessions over RDMA, on soft RoCE in a guest: programs, forks, hostile peers, links that go down
	$(PY) -m pytest $(PYTEST_FLAGS) -q -s --durations=8 --basetemp=$$(mktemp -d /tmp/rdma-XXXX) -m rdma tests/rdma

test-chaos: build/.rig programs native ## kills, pauses, cut cables, jumping clocks, memory that moves: SLUICE_CHAOS_SECONDS (60 in CI, twice; 600; 3600), SLUICE_CHAOS_MEMORY_SECONDS (25), SLUICE_CHAOS_SEED
	$(PY) -m pytest $(PYTEST_FLAGS) -q -s -m chaos tests/chaos tests/withstand

test-vsphere: build/.vsphere programs native guest-bundle ## vSphere's part against a simulated vCenter (built here from Go modules), 1,000 client VMs among it
	$(PY) -m pytest $(PYTEST_FLAGS) -q --durations=8 -m vsphere tests/vsphere

test-openstack: build/.openstack programs native guest-bundle ## instances with vGPUs on a real Keystone, Placement, Glance, Neutron and Nova
	$(PY) -m pytest $(PYTEST_FLAGS) -q --durations=12 -m openstack tests/openstack

test-guest-images: build/.images native guest-bundle ## the deb, the rpm, the bundle and the images' recipes in roots of Debian 12 and 11, with a CUDA program
	$(PY) -m pytest $(PYTEST_FLAGS) -q -m guest_images tests/guest_images

test-kubernetes: build/.kubernetes programs native guest-bundle ## pods with vGPUs on real Kubernetes of one node each (built here from Go modules)
	$(PY) -m pytest $(PYTEST_FLAGS) -q --durations=8 -n $(KUBERNETES_JOBS) --dist loadfile -m kubernetes tests/kubernetes

test-release: build/.host-roots native ## the host's deb and rpm in roots of Debian 12 and 13: `sluice init`, a CUDA program, upgrades; SLUICE_RELEASE for a release's own
	$(PY) -m pytest $(PYTEST_FLAGS) -q --durations=8 -m releases tests/releases tests/compatibility

test-containers: build/.containers programs native guest-bundle ## containers of podman and runc with CDI devices: images of several distributions, identity, limits, rootless
	$(PY) -m pytest $(PYTEST_FLAGS) -q --durations=8 --basetemp=$$(mktemp -d /tmp/containers-XXXX) -m containers tests/containers

test-console: build/.console ## the web console in a real Chromium: every page and action, two people at once, accessibility
	$(PY) -m pytest $(PYTEST_FLAGS) -q --durations=8 -m console tests/console

screenshots: build/.console native ## the pictures of docs/console.md, in docs/pictures
	$(PY) tests/console/screenshots.py

test-gpu: export PYTHONPATH := $(CURDIR)/python:$(CURDIR)/site# site is of gpu-host's archive
test-gpu: ## on a machine with an NVIDIA GPU: programs, PyTorch's operators, features, workloads and shares, natively and through Sluice
	$(PYTHON) tests/gpu/run.py
	$(PYTHON) tests/gpu/run.py --cuda 12 --parts programs
	$(PYTHON) tests/gpu/hostile_libraries.py
	$(PYTHON) tests/gpu/conformance.py
	$(PYTHON) tests/gpu/shares.py --parts shares small asks capped one_percent
	$(PYTHON) tests/gpu/shares.py --parts torch
	$(PYTHON) tests/gpu/shares.py --parts alone
	$(PYTHON) tests/gpu/shares.py --parts small_inference
	$(PYTHON) tests/gpu/shares.py --parts concurrent
	$(PYTHON) tests/gpu/shares.py --parts interactive
	$(PYTHON) tests/gpu/at_once.py
	$(PYTHON) tests/gpu/first_use.py
	$(PYTHON) tests/gpu/suspension.py
	$(PYTHON) tests/gpu/oversubscription.py
	$(PYTHON) tests/gpu/preemption.py
	$(PYTHON) tests/gpu/moving.py
	$(PYTHON) tests/gpu/breaks.py
	$(PYTHON) tests/gpu/gangs.py

bench: build/.base programs native ## the figures, with the machine's own floors; also in build/measurements/bench.jsonl
	$(PY) tests/bench/bench.py

lint: build/.base python ## ruff, mypy --strict, vermin, clang-format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy cli config console controller dev guest_runtime hypervisor kubernetes nova_driver pool_client resources server support tests/bench tests/harness native/codegen
	$(VENV)/bin/vermin --quiet --target=3.9- --violations --no-tips guest_runtime
	git ls-files -z -- '*.cc' '*.h' '*.c' '*.cu' | xargs -0 $(VENV)/bin/clang-format --dry-run -Werror

tidy: native ## clang-tidy over the C++ that differs from origin/main, or FILES="…", or FILES=all
	JOBS=$(JOBS) $(PY) dev/tidy.py $(FILES)

coverage: build/.base programs native ## which lines of Python and C++ the tests of `make test` run, as tables; TESTS="tests/cli …" for some
	JOBS=$(JOBS) TEST_JOBS=$(TEST_JOBS) dev/coverage.sh $(TESTS)

test-threads: build/.base ## the relay, the channels, the worker's executor and the client's sessions under ThreadSanitizer
	dev/sanitize.sh thread threads

test-memory: build/.base ## hostile frames into the worker under AddressSanitizer and UndefinedBehaviorSanitizer, and fuzzing: SLUICE_FUZZ_SECONDS (30)
	dev/sanitize.sh address,undefined memory

sanitize: build/.base ## all native tests under AddressSanitizer and UndefinedBehaviorSanitizer, then ThreadSanitizer
	dev/sanitize.sh address,undefined
	dev/sanitize.sh thread

native: build/.base ## everything in C++, into build/native
	flock build/.native.lock cmake -S native -B $(BUILD) -G Ninja -DSLUICE_PYTHON=$(CURDIR)/$(PY) -DSLUICE_TESTS=ON >/dev/null
	flock build/.native.lock cmake --build $(BUILD) -j $(JOBS)

programs: build/.base ## the CUDA test programs (nvcc comes as a wheel)
	flock build/.programs.lock $(PY) tests/programs/build.py

python: build/.base ## what python/sluice lacks: gRPC code, the protocol and the client's settings, generated
	@$(PY) dev/python_layout.py

guest-bundle: build/.base ## dist/sluice-guest-x86_64.tar.gz
	flock build/.bundle.lock $(PY) packaging/guest_bundle.py

guest-packages: build/.packages ## dist/sluice-guest_*.deb and dist/sluice-guest-*.rpm, of the guest bundle (make guest-bundle first)
	$(PY) packaging/guest_packages.py

host-packages: build/.packages native ## dist/sluice-host_*.deb and dist/sluice-host-*.rpm of this build, for this machine's system
	$(PY) packaging/host_packages.py

release: build/.packages build/.release ## dist/release/VERSION from a clean tree: wheel, packages, bundles, bill of materials, checksums (docs/releases.md)
	flock build/.release.lock $(PY) packaging/release.py $(RELEASE_OPTIONS)

release-again: build/.release ## the same once more, elsewhere and without ccache, and every file compared with that of `make release`
	flock build/.release.lock $(PY) packaging/release.py --work build/release/again/work --dist build/release/again/dist --against dist/release $(RELEASE_OPTIONS)

images: guest-bundle ## container images of controller, server, guest runtime and the parts of a Kubernetes cluster by buildah, of package mirrors alone (as root)
	packaging/containers/base.sh $(MIRROR)
	for part in controller server guest kubernetes; do \
	  buildah build --isolation chroot --network host $(BUILD_ARGS) -f packaging/containers/$$part.Containerfile -t sluice-$$part . || exit 1; \
	done

gpu-host: programs native python ## dist/sluice-gpu-host.tar.gz: what test-gpu needs besides a GPU, its driver and GPU_PYTHON (make bench first)
	$(PY) dev/pack_gpu_host.py --python $(GPU_PYTHON)

release-data: programs native guest-bundle ## what later versions are held against, into tests/compatibility/VERSION: before a release is tagged
	PYTHONPATH=$(CURDIR)/python:$(CURDIR)/tests/harness $(PY) -m tests.compatibility.recording.record

docs: native ## what is made from the registry, the commands and docs/measurements: api-coverage.md, cli.md, tables of other pages
	$(PY) dev/cli_reference.py
	$(PY) dev/protocol_reference.py
	$(PY) dev/configuration_reference.py
	$(PY) dev/measurement_tables.py
	$(PY) dev/application_table.py
	cp $(BUILD)/generated/docs/api-coverage.md docs/api-coverage.md

format: build/.base ## ruff format and clang-format, in place
	$(PY) -m ruff format .
	git ls-files -z -- '*.cc' '*.h' '*.c' '*.cu' | xargs -0 $(VENV)/bin/clang-format -i

build/.base: pyproject.toml dev/install_debian.sh dev/prometheus.sh
	dev/install_debian.sh build
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) dev/install_requirements.py dev
	$(PY) dev/python_layout.py
	dev/prometheus.sh build/tools
	@mkdir -p build && touch $@

build/.rig: build/.base dev/vhost_device_vsock.sh
	dev/install_debian.sh rig
	dev/vhost_device_vsock.sh build/tools
	@touch $@

build/.rdma: build/.rig
	dev/install_debian.sh rdma
	@touch $@

build/.packages: build/.base
	dev/install_debian.sh packages
	@touch $@

build/.release: build/.packages
	test "$$(id -u)" != 0 || dev/install_debian.sh release
	@touch $@

build/.host-roots: build/.packages dev/make_roots.sh
	dev/install_debian.sh images
	dev/make_roots.sh build/host-roots host
	@touch $@

build/.images: build/.packages dev/make_roots.sh tests/guest_images/requirements.txt
	dev/install_debian.sh images
	dev/make_roots.sh build/guest-images guest
	test -x build/guest-images/venv/bin/python || $(PYTHON) -m venv build/guest-images/venv
	build/guest-images/venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/guest_images/requirements.txt
	@touch $@

build/.containers: build/.base dev/make_container_roots.sh
	dev/install_debian.sh containers
	dev/make_container_roots.sh build/containers/roots
	@touch $@

build/.vsphere: build/.base dev/find_go.sh dev/build_vsphere_simulator.sh $(wildcard tests/vsphere/simulator/*)
	$(PY) dev/install_requirements.py vsphere
	dev/build_vsphere_simulator.sh $(VENV) build/vsphere-simulator
	@touch $@

build/.kubernetes: build/.base dev/find_go.sh dev/build_kubernetes.sh $(wildcard tests/rigs/kubernetes/programs/* tests/rigs/kubernetes/programs/*/*)
	dev/install_debian.sh kubernetes
	dev/build_kubernetes.sh $(VENV) build/kubernetes
	@touch $@

build/.console: build/.base dev/fetch_axe.sh tests/console/requirements.txt
	dev/install_debian.sh console
	$(PY) dev/install_requirements.py browser
	test -x build/console/provider/bin/python || $(PYTHON) -m venv build/console/provider
	build/console/provider/bin/python -m pip install --quiet --disable-pip-version-check -r tests/console/requirements.txt
	PYTHON=$(PY) dev/fetch_axe.sh build/console
	@touch $@

build/.openstack: build/.rig tests/rigs/openstack/install.sh tests/rigs/openstack/requirements.txt
	$(PY) dev/install_requirements.py openstack
	tests/rigs/openstack/install.sh build/openstack/venv
	@touch $@

clean:
	rm -rf build dist python/sluice/rpc python/sluice/protocol guest_runtime/client_settings.py
