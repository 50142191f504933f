# SPDX-License-Identifier: Apache-2.0
"""What `make release` is made of, part by part: wheels in one folder, checksums, the same bytes
twice, a bill of materials that names everything, a tree that differs from its commit."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGING = CHECKOUT / "packaging"
WHEELS = CHECKOUT / "build" / "release" / "wheels"
TOOLS = CHECKOUT / "build" / "release" / "tools" / "bin" / "python"
MOMENT = 1_764_000_000


def part(name: str) -> ModuleType:
    """A module of packaging/, which is a folder of scripts."""
    if str(PACKAGING) not in sys.path:
        sys.path.insert(0, str(PACKAGING))
    return importlib.import_module(name)


def wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path


def test_wheels_for_several_pythons_lie_in_one_folder(tmp_path: Path) -> None:
    site = part("host_site")
    both = {"x/__init__.py": b"1\n", "x-1.dist-info/METADATA": b"Name: x\n"}
    of = {n: {f"x/_c.cpython-{n}-x86_64-linux-gnu.so": f"\x7fELF{n}".encode()} for n in (311, 312)}
    wheels = [
        wheel(tmp_path, f"x-1-cp{n}", {**both, **of[n], "x-1.dist-info/WHEEL": str(n).encode()})
        for n in (311, 312)
    ]
    site.lay(wheels, tmp_path / "site")
    names = {path.name: path for path in (tmp_path / "site/x").iterdir()}
    assert set(names) == {
        "__init__.py", "_c.cpython-311-x86_64-linux-gnu.so", "_c.cpython-312-x86_64-linux-gnu.so"
    }  # fmt: skip
    assert names["__init__.py"].stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"x/__init__.py": b"2\n"}, "differs from another wheel's"),
        ({"../../etc/passwd": b""}, "leads out of the folder"),
        ({"/etc/passwd": b""}, "leads out of the folder"),
    ],
)
def test_wheels_that_do_not_fit_make_no_folder(
    tmp_path: Path, files: dict[str, bytes], says: str
) -> None:
    site = part("host_site")
    first = wheel(tmp_path, "a", {"x/__init__.py": b"1\n"})
    with pytest.raises(site.SiteError, match=says):
        site.lay([first, wheel(tmp_path, "b", files)], tmp_path / "site")


def test_every_locked_library_has_hashes_and_a_wheel_for_every_python() -> None:
    site = part("host_site")
    lock = (PACKAGING / "release/host.txt").read_text()
    names = re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE)
    project = (CHECKOUT / "pyproject.toml").read_text()
    wanted = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert wanted
    for name in re.findall(r'"([a-zA-Z0-9._-]+)', wanted[1]):
        assert re.sub("[-_.]+", "-", name).lower() in names
    for block in re.split(r"^(?=[a-z])", lock, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in block, block
    wheels = site.download(WHEELS)
    found = {site.name_and_version(path)[0] for path in wheels}
    assert found == {name for name, _ in site.locked()}
    for python in site.PYTHONS:
        compiled = [p for p in wheels if f"cp{python.replace('.', '')}-cp" in p.name]
        assert {"grpcio", "pydantic-core"} <= {site.name_and_version(p)[0] for p in compiled}


@pytest.fixture(scope="module")
def built_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout's build."""
    release = part("release_wheel")
    work = tmp_path_factory.mktemp("wheel")
    tools = release.make_tools(TOOLS.parents[1])
    made = release.pack_built(CHECKOUT, tools, work, MOMENT, CHECKOUT / "build/native")
    return Path(shutil.copy(made, tmp_path_factory.mktemp("kept")))


def test_the_same_sources_give_the_same_wheel(built_wheel: Path, tmp_path: Path) -> None:
    release = part("release_wheel")
    again = release.pack_built(CHECKOUT, TOOLS, tmp_path, MOMENT, CHECKOUT / "build/native")
    assert again.name == built_wheel.name
    assert again.read_bytes() == built_wheel.read_bytes()


def test_a_wheel_has_what_hosts_and_their_programs_need(built_wheel: Path) -> None:
    names = set(zipfile.ZipFile(built_wheel).namelist())
    native = set(part("release_wheel").native_files(built_wheel))
    assert {"sluice-worker", "sluice-relay", "sluice_meter.so", "libcuda.so.1"} <= native
    assert {"libcudart.so.13", "libcudart.so.12", "libsluice-softgpu.so.1"} <= native
    for name in (
        "sluice/rpc/pool_pb2.py",
        "sluice/protocol/frames.py",
        "sluice/guest_runtime/client_settings.py",
        "sluice/console/static/vendor/SHA256SUMS",
        "sluice/templates/systemd/sluice-server.service.j2",
        "sluice/cli/setup/init_command.py",
    ):
        assert name in names, name
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]


@pytest.mark.parametrize("libraries", ["the oldest that it asks for", "the host's packages'"])
def test_a_wheels_grpc_code_is_imported_with(
    built_wheel: Path, tmp_path: Path, libraries: str
) -> None:
    with zipfile.ZipFile(built_wheel) as archive:
        code = [name for name in archive.namelist() if name.startswith("sluice/rpc/")]
        for name in code:
            archive.extract(name, tmp_path / "wheel")
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        asks = archive.read(name).decode()
    asked = r"^Requires-Dist: (grpcio|protobuf)\b[^;\n]*>=([\d.]+)"
    versions = dict(re.findall(asked, asks, re.MULTILINE))
    assert set(versions) == {"grpcio", "protobuf"}
    if libraries == "the host's packages'":
        versions = {name: dict(part("host_site").locked())[name] for name in versions}
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pinned = [f"{name}=={version}" for name, version in versions.items()]
    command = [*pip, "--no-deps", "--target", tmp_path / "site", *pinned, "typing-extensions"]
    subprocess.run(command, check=True)
    modules = sorted(Path(name).stem for name in code if name.endswith("_pb2_grpc.py"))
    assert "pool_pb2_grpc" in modules
    subprocess.run(
        [
            *(sys.executable, "-S", "-W", "error::UserWarning"),
            *("-c", f"from sluice.rpc import {', '.join(modules)}"),
        ],
        env={"PYTHONPATH": f"{tmp_path / 'site'}:{tmp_path / 'wheel'}"},
        check=True,
    )


def test_the_same_wheel_gives_the_same_packages(built_wheel: Path, tmp_path: Path) -> None:
    packages, site = part("host_packages"), part("host_site")
    wheels = site.download(WHEELS)
    sums = []
    for name in ("one", "other"):
        made = packages.build(built_wheel, wheels, "1.2", MOMENT, tmp_path / name, "none")
        sums.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made})
        for path in made:
            path.unlink()
    assert sums[0] == sums[1]
    assert len(sums[0]) == 2


def test_the_offline_bundle_is_whole_and_the_same_twice(tmp_path: Path) -> None:
    offline = part("offline")
    files = {name: tmp_path / name for name in ("a.deb", "b.tar.gz", "c.whl", "d.json")}
    for path in files.values():
        path.write_text(path.name)
    whole = offline.contents(
        "1.2", [files["a.deb"]], files["b.tar.gz"], [files["c.whl"]], files["d.json"]
    )
    targets = [tmp_path / f"{n}.tar" for n in (1, 2)]
    for target in targets:
        offline.pack("sluice-offline-1.2", whole, MOMENT, target)
    assert targets[0].read_bytes() == targets[1].read_bytes()
    with tarfile.open(targets[0]) as archive:
        archive.extractall(tmp_path / "out", filter="data")
    top = tmp_path / "out/sluice-offline-1.2"
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=top, check=False)
    assert done.returncode == 0
    assert {"README", "host.txt", "packages", "wheels", "bundle", "documents"} <= {
        path.name for path in top.iterdir()
    }
    assert "Sluice 1.2" in (top / "README").read_text()
    assert "packaging/release/host.txt" not in (top / "README").read_text()


def test_the_bill_of_materials_names_everything_with_a_licence(
    built_wheel: Path, tmp_path: Path
) -> None:
    site = part("host_site")
    wheels = site.download(WHEELS)
    texts = []
    for name in ("one.json", "other.json"):
        command = [TOOLS, PACKAGING / "sbom.py", *wheels, "--version", "1.2", "--commit", "abc"]
        command += ["--moment", str(MOMENT), "--zig", "0", "--into", tmp_path / name]
        subprocess.run(command, check=True)  # it checks the schema itself
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    parts = json.loads(texts[0])["components"]
    named = {component["name"] for component in parts}
    assert named >= {name for name, _ in site.locked()}
    vendored = (CHECKOUT / "console/static/vendor/SHA256SUMS").read_text().split()[::2]
    hashes = {each["content"] for c in parts for each in c.get("hashes", ())}
    assert hashes >= set(vendored)
    assert hashes >= {hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels}
    assert [c["name"] for c in parts if not c.get("licenses")] == []


def test_a_tree_that_differs_from_its_commit_is_refused(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        own = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        subprocess.run(["git", *own, *words], cwd=tmp_path, check=True, capture_output=True)

    def release() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, tmp_path / "packaging/release.py"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    shutil.copytree(PACKAGING, tmp_path / "packaging", symlinks=True)
    (tmp_path / "guest_runtime").mkdir()
    (tmp_path / "guest_runtime/__init__.py").write_text('VERSION = "1.0"\n')
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.1"\n')
    (tmp_path / ".gitignore").write_text("__pycache__/\nbuild/\ndist/\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "one")
    (tmp_path / "new").write_text("")
    refused = release()
    assert refused.returncode == 1
    assert "differs from its last commit" in refused.stderr
    assert "?? new" in refused.stderr
    (tmp_path / "new").unlink()
    refused = release()
    assert refused.returncode == 1
    assert "pyproject.toml says 1.1 and guest_runtime/__init__.py 1.0" in refused.stderr


@pytest.mark.parametrize(
    ("version", "text", "says"),
    [
        ("0.2.0.dev0", "## [Unreleased]\n\n### Added\n\n- New.\n", None),
        ("0.2.0.dev0", "## [Unreleased]\n\n## [0.1.0] - 2026-01-31\n\n- Old.\n", "[Unreleased]"),
        ("0.2.0rc1", "## [0.2.0rc1] - 2026-01-31\n\n- New.\n", "[Unreleased]"),
        ("0.2.0", "## [0.2.0] - 2026-01-31\n\n- New.\n\n## [0.1.0]\n", None),
        ("0.2.0", "## [Unreleased]\n\n- New.\n\n## [0.1.0] - 2026-01-31\n", "[0.2.0]"),
        ("0.2.0", "## [0.2.0]\n\n- New.\n", "wants its day"),
    ],
)
def test_a_version_whose_changelog_is_not_written_is_refused(
    tmp_path: Path, version: str, text: str, says: str | None
) -> None:
    release = part("release")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{text}")
    if says is None:
        release.refuse_unwritten(tmp_path, version)
        return
    with pytest.raises(SystemExit, match=re.escape(says)):
        release.refuse_unwritten(tmp_path, version)


def test_this_checkouts_versions_and_changelog_fit() -> None:
    release = part("release")
    release.refuse_unwritten(CHECKOUT, release.version_of(CHECKOUT))


def test_an_archive_of_images_is_the_same_whoever_packs_it(tmp_path: Path) -> None:
    images = part("release_images")
    sums = set()
    for name, mode in (("one", 0o600), ("other", 0o644)):
        blob = tmp_path / name / "blobs/sha256/aa"
        blob.parent.mkdir(parents=True)
        blob.write_text("a layer\n")
        blob.chmod(mode)
        (tmp_path / name / "index.json").write_text("{}\n")
        images.pack(tmp_path / name, MOMENT, tmp_path / f"{name}.tar")
        sums.add(hashlib.sha256((tmp_path / f"{name}.tar").read_bytes()).hexdigest())
    assert len(sums) == 1
    with tarfile.open(tmp_path / "one.tar") as archive:
        assert {member.mtime for member in archive} == {MOMENT}
        assert {member.uid for member in archive} == {0}


def test_a_clusters_image_adds_what_the_host_has_not() -> None:
    site = part("host_site")
    host, cluster = site.locked(), site.locked(site.KUBERNETES_LOCK)
    assert "kubernetes" in {name for name, _ in cluster - host}
    shared = {name for name, _ in host} & {name for name, _ in cluster}
    assert {each for each in host if each[0] in shared} <= cluster, "lock.sh makes both"


def test_two_runs_are_compared_by_their_checksums(tmp_path: Path) -> None:
    release = part("release")
    for name, text in (("a", "1  x\n2  y\n"), ("b", "1  x\n3  y\n4  z\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SHA256SUMS").write_text(text)
    assert release.differences(tmp_path / "a", tmp_path / "b") == ["y", "z"]
    assert release.differences(tmp_path / "a", tmp_path / "a") == []
