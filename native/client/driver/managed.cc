// SPDX-License-Identifier: Apache-2.0
// Managed memory as the API has it. Prefetching and advice are taken although the device has no
// concurrent managed access, for which CUDA would refuse most of them.
#include <cstring>

#include "client/core/addresses.h"
#include "client/core/enter.h"
#include "client/driver/location.h"
#include "client/driver/wait.h"

using namespace sluice::client;

namespace {

bool is_device(Session* s, int device) {
  return device >= 0 && static_cast<size_t>(device) < s->devices().size();
}

// Managed memory, and who is meant by a location: a device, or Advice::kHost.
CUresult where(Session* s, const CUmemLocation& location, int* to) {
  if (is_on_host(location)) {
    *to = Advice::kHost;
    return CUDA_SUCCESS;
  }
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(s, location.id)) return CUDA_ERROR_INVALID_DEVICE;
  *to = location.id;
  return CUDA_SUCCESS;
}

CUmemLocation location_of(int device) {
  CUmemLocation location{};
  location.type = device == Advice::kHost ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device == Advice::kHost ? 0 : device;
  return location;
}

CUresult prefetch(Session* s, Stream* stream, uint64_t address, uint64_t bytes, int to) {
  // What is recorded runs later, and would fetch then what this process may be using.
  if (stream->capture) return s->captures.refuse(stream);
  const CUresult e = s->managed.advise(address, bytes, [&](Advice* a) { a->prefetched = to; });
  if (e != CUDA_SUCCESS) return e;
  return to == Advice::kHost ? s->managed.prefetch_to_host(address, bytes)
                             : s->managed.before_use(*stream, address, bytes);
}

// Whether the attribute is about processors rather than a number, and is written to `data`.
CUresult range_attribute(Session* s, void* data, size_t room, CUmem_range_attribute attribute,
                         uint64_t address, uint64_t bytes) {
  if (!data || room == 0 || room % 4 != 0) return CUDA_ERROR_INVALID_VALUE;
  bool mostly = true, first = true, same_wanted = true, same_prefetched = true, by_host = true;
  Advice one;
  uint64_t accessed = ~uint64_t{0};
  if (!s->managed.advice(address, bytes, [&](const Advice& a) {
        if (first) one = a;
        same_wanted &= a.preferred == one.preferred;
        same_prefetched &= a.prefetched == one.prefetched;
        mostly &= a.read_mostly;
        accessed &= a.accessed_by;
        by_host &= a.accessed_by_host;
        first = false;
      }))
    return CUDA_ERROR_INVALID_VALUE;
  const int wanted = same_wanted ? one.preferred : Advice::kNowhere;
  const int prefetched = same_prefetched ? one.prefetched : Advice::kNowhere;
  const auto put = [&](int value) {
    if (room != sizeof value) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  const auto type = [](int device) -> int {
    return device == Advice::kNowhere ? CU_MEM_LOCATION_TYPE_INVALID : location_of(device).type;
  };
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      return put(mostly);
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      return put(wanted);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      return put(prefetched);
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      return put(type(wanted));
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      return put(wanted >= 0 ? wanted : 0);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      return put(type(prefetched));
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      return put(prefetched >= 0 ? prefetched : 0);
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      std::vector<int> all;
      if (by_host) all.push_back(Advice::kHost);
      for (int i = 0; i < 64; ++i)
        if (accessed >> i & 1) all.push_back(i);
      all.resize(room / sizeof(int), Advice::kNowhere);
      std::memcpy(data, all.data(), room);
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

extern "C" {

CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned int flags) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->captures.unsafe(); e != CUDA_SUCCESS) return e;
  if (!pointer || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
    return CUDA_ERROR_INVALID_VALUE;
  if (s->spans_nodes()) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t address;
  const CUresult e = s->managed.allocate(d, bytes, flags, &address);
  if (e == CUDA_SUCCESS) *pointer = address;
  return e;
}

CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr pointer, size_t length,
                                unsigned int flags) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = stream_for_work(s, d, handle, &stream); e != CUDA_SUCCESS) return e;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture) return s->captures.refuse(stream);
  return s->managed.attach(stream, pointer, length, flags);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t count, CUmemLocation location,
                               unsigned int flags, CUstream handle) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = stream_for_work(s, d, handle, &stream); e != CUDA_SUCCESS) return e;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  int to;
  if (const CUresult e = where(s, location, &to); e != CUDA_SUCCESS) return e;
  return prefetch(s, stream, pointer, count, to);
}

CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t count, CUdevice device, CUstream stream) {
  if (device < Advice::kHost) return CUDA_ERROR_INVALID_DEVICE;
  return cuMemPrefetchAsync_v2(pointer, count, location_of(device), 0, stream);
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr* pointers, size_t* sizes, size_t count,
                                 CUmemLocation* locations, size_t* firsts, size_t location_count,
                                 unsigned long long flags, CUstream handle) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  // As batches of copies, not in the legacy default stream.
  if (!handle || handle == CU_STREAM_LEGACY || !pointers || !sizes || !count || !locations ||
      !firsts || !location_count || location_count > count || firsts[0] != 0 || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = stream_for_work(s, d, handle, &stream); e != CUDA_SUCCESS) return e;
  for (size_t i = 1; i < location_count; ++i)
    if (firsts[i] <= firsts[i - 1] || firsts[i] >= count) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0, l = 0; i < count; ++i) {
    if (l + 1 < location_count && firsts[l + 1] == i) ++l;
    int to;
    if (const CUresult e = where(s, locations[l], &to); e != CUDA_SUCCESS) return e;
    if (const CUresult e = prefetch(s, stream, pointers[i], sizes[i], to); e != CUDA_SUCCESS)
      return e;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t count, CUmem_advise advice,
                        CUmemLocation location) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  int to = Advice::kNowhere;
  const bool names_one = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                         advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
                         advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (names_one)
    if (const CUresult e = where(s, location, &to); e != CUDA_SUCCESS) return e;
  const auto access = [&](Advice* a, bool on) {
    if (to == Advice::kHost)
      a->accessed_by_host = on;
    else
      a->accessed_by = (a->accessed_by & ~(uint64_t{1} << to)) | uint64_t{on} << to;
  };
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
      return s->managed.advise(pointer, count, [](Advice* a) { a->read_mostly = true; });
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      return s->managed.advise(pointer, count, [](Advice* a) { a->read_mostly = false; });
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      return s->managed.advise(pointer, count, [&](Advice* a) { a->preferred = to; });
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      return s->managed.advise(pointer, count, [](Advice* a) { a->preferred = Advice::kNowhere; });
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
      return s->managed.advise(pointer, count, [&](Advice* a) { access(a, true); });
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      return s->managed.advise(pointer, count, [&](Advice* a) { access(a, false); });
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemAdvise(CUdeviceptr pointer, size_t count, CUmem_advise advice, CUdevice device) {
  // Advice that names nobody takes any number.
  return cuMemAdvise_v2(pointer, count, advice, location_of(device < Advice::kHost ? 0 : device));
}

CUresult cuMemRangeGetAttribute(void* data, size_t room, CUmem_range_attribute attribute,
                                CUdeviceptr pointer, size_t count) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  return range_attribute(s, data, room, attribute, pointer, count);
}

CUresult cuMemRangeGetAttributes(void** data, size_t* rooms, CUmem_range_attribute* attributes,
                                 size_t attribute_count, CUdeviceptr pointer, size_t count) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!data || !rooms || !attributes || attribute_count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < attribute_count; ++i)
    if (const CUresult e = range_attribute(s, data[i], rooms[i], attributes[i], pointer, count);
        e != CUDA_SUCCESS)
      return e;
  return CUDA_SUCCESS;
}

}  // extern "C"
