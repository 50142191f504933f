# SPDX-License-Identifier: Apache-2.0
"""A wrong annotation is refused with a message that names file, function, parameter and fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from imported import RegistryError
from kinds import Kind
from model import Registry
from registry import load_registry

Spoil = Callable[[str], Path]


def functions(text: str) -> str:
    return f"functions:\n  {text}\n"


BAD = {
    "unknown function": (functions("cuNothing: {class: answered}"), ["driver.yaml", "cuNothing"]),
    "macro name": (functions("cuGraphInstantiateX: {class: local}"), ["no header declares it"]),
    "unknown class": (functions("cuInit: {class: sometimes}"), ["cuInit", "sometimes", "answered"]),
    "unknown key": (functions("cuInit: {class: answered, blocks: true}"), ["cuInit", "blocks"]),
    "unknown kind": (
        functions("cuMemsetD8_v2: {class: async, params: {dstDevice: addres}}"),
        ["driver.yaml: cuMemsetD8_v2: parameter dstDevice", "addres", "device_address"],
    ),
    "unknown parameter": (
        functions("cuMemsetD8_v2: {class: async, params: {dst: device_address}}"),
        ["cuMemsetD8_v2: parameter dst", "dstDevice"],
    ),
    "undecidable type": (
        functions("cuDeviceGetName: {class: answered}"),
        ["driver.yaml: cuDeviceGetName: parameter name", "add params: {name: KIND}"],
    ),
    "count missing": (
        functions("cuDeviceGetName: {class: answered, params: {name: out_string}}"),
        ["cuDeviceGetName: parameter name", "out_string: COUNT_PARAMETER"],
    ),
    "count unknown": (
        functions("cuDeviceGetName: {class: answered, params: {name: {out_string: size}}}"),
        ["cuDeviceGetName: parameter name", "'size'"],
    ),
    "count not an integer": (
        functions(
            "cuGraphAddEmptyNode: {class: async, state: creates, "
            "params: {dependencies: {in_array: hGraph}}}"
        ),
        ["cuGraphAddEmptyNode: parameter dependencies", "counted by hGraph"],
    ),
    "refused without saying what": (
        functions("cuMulticastCreate: {class: refused, note: none}"),
        ["cuMulticastCreate", "class refused needs answers", "attribute"],
    ),
    "an answer without a refusal": (
        functions("cuInit: {class: local, hand: client, answers: CUDA_ERROR_NOT_SUPPORTED}"),
        ["cuInit", "answers is for class refused"],
    ),
    "value from an async function": (
        functions("cuStreamGetFlags: {class: async}"),
        ["cuStreamGetFlags", "parameter flags", "class answered"],
    ),
    "pointers inside": (
        functions("cuTexObjectGetResourceDesc: {class: answered, params: {pResDesc: out}}"),
        ["cuTexObjectGetResourceDesc: parameter pResDesc", "hand: all"],
    ),
    "writing through const": (
        functions("cuMemHostGetFlags: {class: answered, params: {p: out_bytes}}"),
        ["cuMemHostGetFlags: parameter p"],
    ),
    "local without code": (functions("cuInit: {class: local}"), ["cuInit", "hand: client"]),
    "cached but not answered": (
        functions("cuCtxResetPersistingL2Cache: {class: async, cache: pure}"),
        ["cache"],
    ),
    "unsupported without reason": (functions("cuInit: unsupported"), ["cuInit", "note"]),
    "creates nothing": (
        functions("cuStreamQuery: {class: answered, state: creates}"),
        ["cuStreamQuery", "mint"],
    ),
    "variant annotated": (
        functions("cuStreamQuery_ptsz: {class: answered}"),
        ["annotate cuStreamQuery"],
    ),
    "alias differs": (
        (
            "functions: {cuMemAlloc_v2: {class: local, hand: client}}\n"
            "aliases: {cuMemAlloc: cuMemAlloc_v2}\n"
        ),
        ["aliases: cuMemAlloc", "parameters differ"],
    ),
    "alias of nothing": ("aliases: {cuStreamDestroy: cuStreamDestroy_v2}\n", ["must be supported"]),
    "unknown section": ("function: {}\n", ["driver.yaml", "'function'"]),
    "not YAML": ("functions: {\n", ["driver.yaml", "not YAML"]),
    "command without signature": (
        "commands: {sluiceX: {class: async}}\n",
        ["commands: sluiceX", "signature"],
    ),
    "command with another's name": ("commands: {cuX: {class: async}}\n", ["begin with 'sluice'"]),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_annotation_is_refused_with_place_and_fix(case: str, spoiled: Spoil) -> None:
    text, expected = BAD[case]
    with pytest.raises(RegistryError) as caught:
        load_registry(spoiled(text))
    for part in expected:
        assert part in str(caught.value)


def resolve(spoiled: Spoil, text: str) -> Registry:
    return load_registry(spoiled(text))


def test_kinds_follow_from_types(spoiled: Spoil) -> None:
    registry = resolve(
        spoiled,
        "functions:\n"
        "  cuStreamCreate: {class: async, state: creates}\n"
        "  cuStreamGetCtx: {class: answered}\n"
        "  cuMemsetD8Async: {class: async}\n"
        "  cuModuleGetGlobal_v2: {class: answered, params: {bytes: out or null}}\n"
        "  cuArrayCreate_v2: {class: answered, state: creates, allocates: true}\n"
        "  cuGraphAddEmptyNode:\n"
        "    class: async\n"
        "    state: creates\n"
        "    params: {dependencies: {in_array: numDependencies}}\n",
    )

    def kinds(name: str) -> dict[str, Kind]:
        return {p.name: p.kind for p in registry.functions[name].params}

    assert kinds("cuStreamCreate") == {"phStream": Kind.MINT, "Flags": Kind.SCALAR}
    assert kinds("cuStreamGetCtx") == {"hStream": Kind.HANDLE, "pctx": Kind.OUT_HANDLE}
    assert kinds("cuMemsetD8Async")["dstDevice"] == Kind.DEVICE_ADDRESS
    assert kinds("cuArrayCreate_v2") == {"pHandle": Kind.MINT, "pAllocateArray": Kind.IN}
    get_global = registry.functions["cuModuleGetGlobal_v2"]
    assert kinds("cuModuleGetGlobal_v2")["name"] == Kind.STRING
    assert get_global.param("bytes").nullable
    assert not get_global.param("dptr").nullable
    dependencies = registry.functions["cuGraphAddEmptyNode"].param("dependencies")
    assert dependencies.handle == "CUgraphNode"
    assert dependencies.count == "numDependencies"


def test_a_command_of_our_own_has_parameters_like_any_other(spoiled: Spoil) -> None:
    registry = resolve(
        spoiled,
        "commands:\n"
        "  sluiceBack:\n"
        "    class: async\n"
        "    signature:\n"
        "      {address: CUdeviceptr, bytes: size_t, device: CUdevice, stream: CUstream}\n",
    )
    command = registry.commands["sluiceBack"]
    assert [p.kind for p in command.params] == [
        Kind.DEVICE_ADDRESS,
        Kind.SCALAR,
        Kind.DEVICE,
        Kind.HANDLE,
    ]
    assert command.library == "sluice"
    assert command.frame_generated


def test_every_exported_function_is_handled_once() -> None:
    """Annotated, another name, a variant or a stub: together they are the library."""
    registry = load_registry()
    ways: dict[str, int] = dict.fromkeys(registry.driver.functions, 0)
    supported = [n for n in registry.functions if registry.supported(n)]
    stubs = [f.name for f in registry.unsupported_driver()]
    for name in [*supported, *registry.aliases, *registry.variants, *stubs]:
        ways[name] += 1
    assert {n: c for n, c in ways.items() if c != 1} == {}
