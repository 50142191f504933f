# SPDX-License-Identifier: Apache-2.0
"""Advice, prefetching, attachment and range attributes: prints, as JSON, what each answers."""

from __future__ import annotations

import ctypes
import json

CU = ctypes.CDLL("libcuda.so.1")
ADDRESS, SIZE = ctypes.c_uint64, ctypes.c_size_t
DEVICE, HOST = 1, 2  # types of location
GLOBAL, SINGLE = 1, 4
READ_MOSTLY, NOT_READ_MOSTLY, PREFERRED, ACCESSED_BY, NOT_ACCESSED_BY = 1, 2, 3, 5, 6
ATTRIBUTES = {"read_mostly": 1, "preferred": 2, "last": 4, "preferred_type": 5, "last_type": 7}
OF_DEVICE = {"managed": 83, "concurrent": 89, "pageable": 88, "direct": 101}
HALF = 1 << 20


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


ON_DEVICE, ON_HOST = Location(DEVICE, 0), Location(HOST, 0)


def must(error: int) -> None:
    """For what is to succeed."""
    if error:
        raise SystemExit(f"CUDA error {error}")


def managed(size: int) -> int:
    """The address of new memory."""
    at = ADDRESS()
    must(CU.cuMemAllocManaged(ctypes.byref(at), SIZE(size), GLOBAL))
    return at.value


def advise(at: int, size: int, advice: int, where: Location = ON_DEVICE) -> int:
    return int(CU.cuMemAdvise_v2(ADDRESS(at), SIZE(size), advice, where))


def prefetch(at: int, size: int, where: Location = ON_DEVICE, flags: int = 0) -> int:
    return int(CU.cuMemPrefetchAsync_v2(ADDRESS(at), SIZE(size), where, flags, None))


def attach(at: int, size: int, flags: int) -> int:
    return int(CU.cuStreamAttachMemAsync(None, ADDRESS(at), SIZE(size), flags))


def attributes(at: int, size: int) -> list[int]:
    """Those above, asked for in one call, each as it is by itself."""
    found = [ctypes.c_int(77) for _ in ATTRIBUTES]
    places = (ctypes.c_void_p * len(found))(*map(ctypes.addressof, found))
    sizes = (SIZE * len(found))(*[4] * len(found))
    kinds = (ctypes.c_int * len(found))(*ATTRIBUTES.values())
    must(
        CU.cuMemRangeGetAttributes(places, sizes, kinds, SIZE(len(found)), ADDRESS(at), SIZE(size))
    )
    for kind, value in zip(ATTRIBUTES.values(), found, strict=True):
        one = ctypes.c_int(77)
        must(CU.cuMemRangeGetAttribute(ctypes.byref(one), SIZE(4), kind, ADDRESS(at), SIZE(size)))
        assert one.value == value.value, (kind, one, value)
    return [value.value for value in found]


def accessed_by(at: int, size: int) -> list[int]:
    """Room for four."""
    found = (ctypes.c_int * 4)(*[77] * 4)
    must(CU.cuMemRangeGetAttribute(found, SIZE(16), 3, ADDRESS(at), SIZE(size)))
    return list(found)


def prefetch_batch(stream: ctypes.c_void_p, *parts: tuple[int, int, Location]) -> int:
    count = len(parts)
    places = (ADDRESS * count)(*(at for at, _, _ in parts))
    sizes = (SIZE * count)(*(size for _, size, _ in parts))
    where = (Location * count)(*(location for _, _, location in parts))
    each = (SIZE * count)(*range(count))
    number = SIZE(count)
    return int(
        CU.cuMemPrefetchBatchAsync(
            places, sizes, number, where, each, number, ctypes.c_ulonglong(0), stream
        )
    )


def free() -> int:
    """MiB that the vGPU has left."""
    left, total = SIZE(), SIZE()
    must(CU.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total)))
    return left.value >> 20


def charged() -> dict[str, int]:
    """What becomes of the vGPU's memory, in MiB; more than it has is refused."""
    before, at = free(), ADDRESS()
    large = managed(100 << 20)
    taken = before - free()
    too_large = CU.cuMemAllocManaged(ctypes.byref(at), SIZE((before + 1) << 20), GLOBAL)
    must(CU.cuMemFree_v2(ADDRESS(large)))
    return {"taken": taken, "too large": too_large, "left": before - free()}


def main() -> None:
    """All of it."""
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    must(CU.cuInit(0))
    must(CU.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(CU.cuCtxSetCurrent(context))
    must(CU.cuStreamCreate(ctypes.byref(stream), 1))
    said: dict[str, object] = {}
    for name, number in OF_DEVICE.items():
        value = ctypes.c_int(77)
        must(CU.cuDeviceGetAttribute(ctypes.byref(value), number, 0))
        said[name] = value.value
    at, size = managed(2 * HALF), 2 * HALF
    said["new"] = attributes(at, size)
    must(advise(at, HALF, READ_MOSTLY))
    must(advise(at, HALF, PREFERRED))
    said["first half"], said["whole"] = attributes(at, HALF), attributes(at, size)
    must(advise(at, HALF, NOT_READ_MOSTLY))
    must(prefetch_batch(stream, (at, HALF, ON_DEVICE), (at + HALF, HALF, ON_HOST)))
    said["halves"] = [attributes(at, HALF), attributes(at + HALF, HALF)]
    must(advise(at, size, ACCESSED_BY))
    must(advise(at, HALF, ACCESSED_BY, ON_HOST))
    said["accessed"] = [sorted(accessed_by(at, HALF)), sorted(accessed_by(at, size))]
    must(advise(at, size, NOT_ACCESSED_BY))
    said["accessed no more"] = sorted(accessed_by(at, size))
    plain = ADDRESS()
    must(CU.cuMemAlloc_v2(ctypes.byref(plain), SIZE(HALF)))
    said["refused"] = {
        "beyond its end": [prefetch(at + HALF, size), advise(at + HALF, size, READ_MOSTLY)],
        "other memory": [prefetch(plain.value, HALF), attach(plain.value, 0, GLOBAL)],
        "nothing": [prefetch(at, 0), advise(at, 0, READ_MOSTLY)],
        "no such device": [prefetch(at, HALF, Location(DEVICE, 5))],
        "flags": [prefetch(at, HALF, ON_DEVICE, 1), attach(at, 0, 3)],
        "a part": [attach(at, HALF, GLOBAL)],
        "the default stream": [
            attach(at, 0, SINGLE),
            prefetch_batch(ctypes.c_void_p(), (at, HALF, ON_HOST)),
        ],
    }
    said["attached"] = attach(at, size, GLOBAL)
    said["charged"] = charged()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
