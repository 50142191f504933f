# SPDX-License-Identifier: Apache-2.0
"""Servers and controllers of different releases understand each other while a pool is upgraded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)
from grpc_tools import protoc

from .releases import NAMES, RELEASES, ROOT

TODAY = ROOT / "controller" / "proto" / "pool.proto"


def described(proto: Path, folder: Path) -> FileDescriptorProto:
    """What a file says, as data."""
    made = folder / "set"
    arguments = ["protoc", f"-I{proto.parent}", f"--descriptor_set_out={made}", str(proto)]
    assert protoc.main(arguments) == 0
    found: FileDescriptorProto = FileDescriptorSet.FromString(made.read_bytes()).file[0]
    return found


def broken(old: FileDescriptorProto, new: FileDescriptorProto) -> list[str]:
    """What one of two ends would understand otherwise."""
    messages = _messages(old.message_type, new.message_type, "")
    return [*_calls(old, new), *messages, *_enumerations(old.enum_type, new.enum_type, "")]


def _calls(old: FileDescriptorProto, new: FileDescriptorProto) -> Iterator[str]:
    if old.package != new.package:
        yield f"the package is {new.package} instead of {old.package}"
    today = {(s.name, m.name): m for s in new.service for m in s.method}
    for service in old.service:
        for method in service.method:
            now = today.get((service.name, method.name))
            if now is None:
                yield f"{service.name}.{method.name} is gone"
                continue
            if _shape(now) != _shape(method):
                yield f"{service.name}.{method.name} takes or answers something else"


def _shape(method: MethodDescriptorProto) -> tuple[object, ...]:
    streams = (method.client_streaming, method.server_streaming)
    return (method.input_type, method.output_type, *streams)


def _messages(
    old: Iterable[DescriptorProto], new: Iterable[DescriptorProto], within: str
) -> Iterator[str]:
    today = {message.name: message for message in new}
    for message in old:
        name = f"{within}{message.name}"
        if message.name not in today:
            yield f"{name} is gone"
            continue
        now = today[message.name]
        yield from _fields(message, now, name)
        yield from _messages(message.nested_type, now.nested_type, f"{name}.")
        yield from _enumerations(message.enum_type, now.enum_type, f"{name}.")


def _fields(old: DescriptorProto, new: DescriptorProto, name: str) -> Iterator[str]:
    today = {field.number: field for field in new.field}
    for field in old.field:
        now = today.get(field.number)
        if now is None:
            yield f"{name}.{field.name} ({field.number}) is gone"
        elif (now.name, now.type, now.type_name, now.label) != (
            field.name,
            field.type,
            field.type_name,
            field.label,
        ):
            yield f"{name}.{field.name} ({field.number}) is {now.name} or of another type"


def _enumerations(
    old: Iterable[EnumDescriptorProto], new: Iterable[EnumDescriptorProto], within: str
) -> Iterator[str]:
    today = {each.name: {value.number: value.name for value in each.value} for each in new}
    for each in old:
        for value in each.value:
            if today.get(each.name, {}).get(value.number) != value.name:
                yield f"{within}{each.name}: {value.name} is not {value.number} any more"


@pytest.mark.parametrize("release", RELEASES, ids=NAMES)
def test_every_field_and_call_of_a_release_is_there(release: Path, tmp_path: Path) -> None:
    old = described(release / "pool.proto", tmp_path)
    assert len(old.message_type) > 10, "the recording is empty"
    assert broken(old, described(TODAY, tmp_path)) == []


@pytest.mark.parametrize(
    ("was", "is_now", "said"),
    [
        ("uint32 vgpu_count = 7;", "", "Inventory.vgpu_count (7) is gone"),
        ("uint32 vgpu_count = 7;", "uint32 vgpu_count = 77;", "Inventory.vgpu_count (7) is gone"),
        ("uint32 vgpu_count = 7;", "string vgpu_count = 7;", "is vgpu_count or of another type"),
        ("uint32 vgpu_count = 7;", "uint32 slices = 7;", "is slices or of another type"),
        ("rpc Register(stream NodeReport)", "rpc Register(NodeReport)", "Register takes or"),
        ("rpc Register(", "rpc Join(", "Register is gone"),
    ],
)
def test_what_would_be_misunderstood_is_seen(
    was: str, is_now: str, said: str, tmp_path: Path
) -> None:
    text = TODAY.read_text()
    assert was in text
    changed = tmp_path / "pool.proto"
    changed.write_text(text.replace(was, is_now, 1))
    found = broken(described(TODAY, tmp_path), described(changed, tmp_path))
    assert any(said in each for each in found), found
