# SPDX-License-Identifier: Apache-2.0
"""Our nvidia-smi: NVIDIA's layout, options and exit statuses, by our NVML over the software GPU.

The node's own NVML is tests/nvml/fake_nvml.c, so that there are figures to be shown.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from control_plane import wait_for
from node_nvml import driver_beside_nvml
from static_pool import StaticPool
from vgpu_user import VgpuUser

from sluice.config.native_files import find_native
from sluice.guest_runtime import smi_log, smi_query
from sluice.guest_runtime.smi_options import BadUsage, parse

CHECKOUT = Path(__file__).resolve().parents[2]
TABLE = (Path(__file__).parent / "smi_table.txt").read_text()

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StaticPool]:
    node = tmp_path_factory.mktemp("node")
    node.parent.chmod(0o755)
    node.parent.parent.chmod(0o755)
    driver = driver_beside_nvml(node)
    folder = tmp_path_factory.mktemp("pool")
    with StaticPool(folder, memory_mib=512, driver=driver) as started:
        yield started


def smi(pool: StaticPool, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `nvidia-smi WORDS`, which the bundle's bin/nvidia-smi passes on to `sluice smi`."""
    return subprocess.run(
        command(*words),
        env=environment(pool, **variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "sluice.guest_runtime", "smi", *words]


def environment(pool: StaticPool, **variables: str) -> dict[str, str]:
    return pool.environment(
        **{
            "PYTHONPATH": str(CHECKOUT / "python"),
            "SLUICE_LIBRARIES": str(find_native("libnvidia-ml.so.1").parent),
            **variables,
        }
    )


def output(pool: StaticPool, *words: str) -> str:
    done = smi(pool, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def idle(pool: StaticPool) -> StaticPool:
    """The pool, when what the tests before ran has left it: a server hears of ends a bit later."""
    wait_for(lambda: "No running processes found" in output(pool), message="nobody to run")
    return pool


def hostile_program(folder: Path) -> Path:
    """Python under a name that would draw on a terminal and break CSV and XML."""
    program = folder / "a,<b>&\x1b[31m\u202e\x07\"c'"
    shutil.copy(Path(sys.executable).resolve(), program)
    return program


def test_the_table_is_nvidias(pool: StaticPool) -> None:
    with VgpuUser(pool.environment()) as user:
        shown = output(pool)
    date, *lines = shown.splitlines()
    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4} {7}", date)
    assert all(len(line) in (0, 91) for line in lines), "as wide as NVIDIA's"
    name = os.path.realpath(sys.executable)
    tail = name if len(name) <= 36 else f"...{name[-33:]}"
    plain = "\n".join(lines) + "\n"
    plain = plain.replace(f"{user.pid:>16}", f"{'PID':>16}").replace(f"{tail:<38}", f"{'NAME':<38}")
    assert plain == TABLE


def test_the_table_without_a_program_shows_the_idle_slice(idle: StaticPool) -> None:
    before = idle.sessions()
    shown = output(idle)
    assert "|       0MiB /    512MiB |" in shown
    assert f"|  {'No running processes found':<87}|" in shown
    assert idle.sessions() == before, "looking takes nothing"


def test_the_list_has_name_and_uuid(pool: StaticPool) -> None:
    with VgpuUser(pool.environment()) as user:
        line = f"GPU 0: Sluice software GPU (CPU) (UUID: {user.uuid})\n"
        assert output(pool, "-L") == output(pool, "--list-gpus") == line


def test_queries_of_gpus(idle: StaticPool) -> None:
    fields = (
        "index,gpu_name,memory.total,memory.used,memory.free,utilization.gpu,temperature.gpu,"
        "power.draw,power.limit,clocks.sm,pstate,persistence_mode,fan.speed,serial,compute_cap"
    )
    ask = f"--query-gpu={fields}"
    head, row = output(idle, ask, "--format=csv").splitlines()
    assert head == (
        "index, name, memory.total [MiB], memory.used [MiB], memory.free [MiB], "
        "utilization.gpu [%], temperature.gpu, power.draw [W], power.limit [W], "
        "clocks.current.sm [MHz], pstate, persistence_mode, fan.speed [%], serial, compute_cap"
    )
    cells = row.split(", ")
    assert re.fullmatch(r"120\.\d\d W", cells.pop(7))
    assert cells == [
        *("0", "Sluice software GPU (CPU)", "512 MiB", "0 MiB", "512 MiB", "37 %", "41"),
        *("700.00 W", "1001 MHz", "P0", "Enabled", "[N/A]", "[N/A]", "9.0"),
    ]
    bare = output(idle, ask, "--format=csv,noheader,nounits").splitlines()
    assert len(bare) == 1
    assert bare[0].split(", ")[2:6] == ["512", "0", "512", "37"]
    apart = output(idle, "--query-gpu", "index", "--format", "noheader,csv")
    assert apart == "0\n"


def test_every_field_of_nvidias_is_taken(pool: StaticPool) -> None:
    asked = ",".join((*smi_query.GPU_FIELDS, *smi_query.ALIASES))
    row = output(pool, f"--query-gpu={asked}", "--format=csv,noheader")
    assert len(row.split(", ")) == len(smi_query.GPU_FIELDS) + len(smi_query.ALIASES)
    for what, fields in (("gpu", smi_query.GPU_FIELDS), ("compute-apps", smi_query.APP_FIELDS)):
        shown = output(pool, f"--help-query-{what}")
        assert all(f'"{field}"' in shown for field in fields)


def test_queries_of_processes(idle: StaticPool) -> None:
    ask = "--query-compute-apps=pid,process_name,used_memory,gpu_uuid"
    assert output(idle, ask, "--format=csv") == (
        "pid, process_name, used_gpu_memory [MiB], gpu_uuid\n"
    )
    with VgpuUser(idle.environment()) as user:
        _, row = output(idle, ask, "--format=csv").splitlines()
        name = os.path.realpath(sys.executable)
        assert row == f"{user.pid}, {name}, 64 MiB, {user.uuid}"


def test_the_log_and_its_sections(idle: StaticPool) -> None:
    whole = output(idle, "-q")
    assert whole.startswith("\n==============NVSMI LOG==============\n\nTimestamp")
    for title, value in (
        ("Attached GPUs", "1"),
        ("    Product Name", "Sluice software GPU (CPU)"),
        ("        GPU Current Temp", "41 C"),
        ("        GPU Shutdown Temp", "90 C"),
        ("        Total", "512 MiB"),
        ("    Processes", "None"),
        ("    VBIOS Version", "N/A"),
    ):
        assert f"\n{title:<51}: {value}\n" in whole
    memory = output(idle, "-q", "-d", "memory,PIDS")
    assert "FB Memory Usage" in memory
    assert "Processes" in memory
    assert "Temperature" not in memory
    power = output(idle, "-q", "--display=POWER")
    assert "Power Draw" in power
    assert "Memory" not in power


def test_xml_is_well_formed_whatever_a_program_is_called(pool: StaticPool, tmp_path: Path) -> None:
    program = hostile_program(tmp_path)
    home = {"PYTHONHOME": sys.base_prefix}
    with VgpuUser(pool.environment(**home), program=program) as user:
        root = ElementTree.fromstring(output(pool, "-q", "-x"))
        table = output(pool)
        row = output(pool, "--query-compute-apps=pid,name", "--format=csv,noheader")
        log = output(pool, "-q", "-d", "PIDS")
    for text in (table, row, log):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert all(len(line) in (0, 31, 91) for line in table.splitlines())
    pid, name = row.rstrip("\n").split(", ")
    assert pid == str(user.pid)
    assert name.endswith("/a <b>&?[31m??\"c'"), "no comma either"
    process = root.find("gpu/processes/process_info")
    assert process is not None
    assert process.findtext("pid") == str(user.pid)
    assert (process.findtext("process_name") or "").endswith("/a,<b>&?[31m??\"c'")
    assert root.findtext("gpu/fb_memory_usage/total") == "512 MiB"
    assert root.findtext("gpu/temperature/gpu_temp") == "41 C"
    assert root.findtext("attached_gpus") == "1"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["-i", "7"], 6, "No devices were found"),
        (["-i", "0,7"], 6, "No devices were found"),
        (["--query-gpu=name,foo", "--format=csv"], 2, 'Field "foo" is not a valid field to query.'),
        (["--query-gpu=", "--format=csv"], 2, "--query-gpu needs a value"),
        (["--query-gpu=name"], 2, '"--format=csv" is needed'),
        (["--query-gpu=name", "--format=json"], 2, 'Format "json" is not a valid format'),
        (["--what"], 2, '"--what" is unknown'),
        (["-q", "-d", "NONSENSE"], 2, 'has no "NONSENSE"'),
        (["-x"], 2, "-x is for -q"),
        (["-lms", "0"], 2, "wants a number above 0"),
        (["--loop=-1"], 2, "wants a number above 0"),
        (["-l", "nan"], 2, "wants a number above 0"),
        (["-pm", "1"], 3, "is not supported: this is the nvidia-smi of Sluice"),
        (["topo", "-m"], 3, "is not supported: this is the nvidia-smi of Sluice"),
        (["-f", "/nowhere/at/all"], 255, "Failed to open /nowhere/at/all"),
        (["-h"], 0, "nvidia-smi of Sluice"),
        (["--version"], 0, "NVML version        : 13"),
        (["-i", "0"], 0, "Processes:"),
        (["-i", "FFFF:01:00.0", "-L"], 0, "GPU 0: "),
    ],
)
def test_exit_statuses_are_nvidias(
    pool: StaticPool, words: list[str], status: int, said: str
) -> None:
    done = smi(pool, *words)
    assert said in done.stdout
    assert done.returncode == status
    assert done.stderr == ""


def test_a_gpu_is_named_by_its_uuid(pool: StaticPool) -> None:
    with VgpuUser(pool.environment()) as user:
        assert user.uuid in output(pool, "-L", f"--id={user.uuid.upper()}")


def test_a_file_gets_what_the_screen_would(pool: StaticPool, tmp_path: Path) -> None:
    path = tmp_path / "log"

    def is_the_same() -> bool:
        assert output(pool, "-L", "-f", str(path)) == ""
        return path.read_text() == output(pool, "-L")

    # between the two a session of the test before may end
    wait_for(is_the_same, message="the same of the same")


def test_where_nothing_can_be_shown_the_reason_is_said(pool: StaticPool, tmp_path: Path) -> None:
    done = smi(pool, SLUICE_SERVER_SOCKET="/nowhere", SLUICE_CHANNEL="shm")
    assert done.returncode == 9
    assert "can show no vGPU of the pool" in done.stdout
    assert "sluice: no vGPU can be shown: no sluice-server at /nowhere" in done.stderr
    alone = tmp_path / "python" / "sluice_guest"
    shutil.copytree(CHECKOUT / "guest_runtime", alone)
    done = subprocess.run(
        [sys.executable, "-m", "sluice_guest", "smi"],
        env={"PYTHONPATH": str(alone.parent), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    if not Path("/opt/sluice/lib/libnvidia-ml.so.1").exists():
        assert done.returncode == 12
        assert "couldn't find libnvidia-ml.so.1 of Sluice" in done.stdout


def test_a_loop_goes_on_through_ends_and_stops_at_ctrl_c(pool: StaticPool) -> None:
    words = ("--query-gpu=index,memory.used", "--format=csv,noheader,nounits", "-lms", "20")
    process = subprocess.Popen(  # what runs in the background of a script ignores SIGINT
        ["env", "--default-signal=INT", *command(*words)],
        env=environment(pool), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def until(wanted: str) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line == wanted:
                return
        raise AssertionError(f"it ended before it said {wanted!r}: {process.wait(60)}")

    until("0, 0\n")
    for _ in range(3):
        with VgpuUser(pool.environment()) as user:
            until("0, 64\n")
            user.kill()
        until("0, 0\n")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 10


@pytest.mark.parametrize("option", [("-l", "1"), ("--loop=1",)])
def test_a_loop_in_seconds_shows_it_again(pool: StaticPool, option: tuple[str, ...]) -> None:
    words = ("--query-gpu=index,memory.total", "--format=csv", *option)
    process = subprocess.Popen(
        ["env", "--default-signal=INT", *command(*words)],
        env=environment(pool), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    shown = [process.stdout.readline() for _ in range(3)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert shown == ["index, memory.total [MiB]\n", *["0, 512 MiB\n"] * 2], "its head once"
    assert process.returncode == 10


def test_whoever_has_read_enough_ends_it(pool: StaticPool) -> None:
    words = " ".join(command("-lms", "10"))
    done = subprocess.run(
        ["sh", "-c", f"{words} | head -n 1; echo ended"],
        env=environment(pool),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.endswith("ended\n")
    assert done.stderr == ""


def test_no_words_are_too_much_for_it() -> None:
    some = random.Random(17)
    known = ["-q", "-x", "-d", "-l", "-lms", "-i", "-f", "--query-gpu", "--format=csv", "--id="]
    for _ in range(5000):
        words = [
            some.choice(known)
            if some.random() < 0.5
            else "".join(some.choices(string.printable + "\x00\x1b\ud800é", k=some.randint(0, 9)))
            for _ in range(some.randint(0, 6))
        ]
        said = ""
        try:
            options = parse(words)
            if options.what == "gpu":
                smi_query.read_fields(options.fields, smi_query.GPU_FIELDS, smi_query.ALIASES)
            smi_query.read_format(options.form)
        except (BadUsage, smi_query.BadQuery) as refusal:
            said = str(refusal)
        assert "\x1b" not in said
        assert "\x00" not in said


def test_the_outline_has_each_field_once_and_only_known_sections() -> None:
    def items(parts: object) -> Iterator[smi_log.Item]:
        for part in parts:  # type: ignore[attr-defined]
            if isinstance(part, smi_log.Group):
                assert part.section in ("", *smi_log.SECTIONS)
                yield from items(part.inside)
            else:
                yield part

    fields = [item.field for item in items(smi_log.OUTLINE) if item.field]
    assert len(fields) == len(set(fields))


def test_nvidias_own_is_told_of_ours(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    shutil.copy(Path(sys.executable).resolve(), program)
    done = subprocess.run(
        [program, "-c", f"import ctypes; ctypes.CDLL({str(find_native('libnvidia-ml.so.1'))!r})"],
        env={
            "PYTHONHOME": sys.base_prefix,
            "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert "sluice: NVIDIA's nvidia-smi asks for private tables" in done.stderr
    assert "/opt/sluice/bin/nvidia-smi" in done.stderr
