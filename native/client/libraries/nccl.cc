// SPDX-License-Identifier: Apache-2.0
// What of NCCL no table says: communicators, which libcuda.so.1 makes; groups; and what needs no
// NCCL: memory, texts.
#include "client/library/nccl.h"

#include <cstring>
#include <vector>

#include "abi/cuda_driver.h"
#include "library/objects.h"

namespace {

enum Result : int32_t {
  kSuccess = 0,
  kCudaError = 1,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
};

struct UniqueId {
  char bytes[sluice::wire::kNcclIdBytes];
};

using sluice::wire::NcclHow;
using Making = sluice_library_nccl_making;

uint64_t id_of(const void* communicator) { return reinterpret_cast<uint64_t>(communicator); }

bool is_communicator(const void* communicator) {
  uint64_t stream;
  return sluice_library_stream(id_of(communicator), sluice::library::k_nccl, &stream);
}

Result result(CUresult e) {
  return e == CUDA_SUCCESS               ? kSuccess
         : e == CUDA_ERROR_INVALID_VALUE ? kInvalidArgument
                                         : kCudaError;
}

}  // namespace

// Every function has a second name, by which profilers call the first.
#define SLUICE_NCCL(returns, name, ...)                                                \
  SLUICE_PUBLIC returns nccl##name(__VA_ARGS__);                                       \
  SLUICE_PUBLIC decltype(nccl##name) pnccl##name __attribute__((alias("nccl" #name))); \
  SLUICE_PUBLIC returns nccl##name(__VA_ARGS__)

SLUICE_PUBLIC int32_t ncclGetUniqueId(void* id);

SLUICE_NCCL(int32_t, GroupStart) { return sluice_library_nccl_group_start(); }

SLUICE_NCCL(int32_t, GroupEnd) { return sluice_library_nccl_group_end(true); }

// How long a group would take is not known here; it ends the group all the same.
SLUICE_NCCL(int32_t, GroupSimulateEnd, void*) {
  sluice_library_unsupported("ncclGroupSimulateEnd");
  const int32_t status = sluice_library_nccl_group_end(false);
  return status == kSuccess ? kInvalidUsage : status;
}

SLUICE_NCCL(int32_t, CommInitRankConfig, void** comm, int ranks, UniqueId id, int rank,
            void* config) {
  const Making m{.how = NcclHow::kRank,
                 .ranks = ranks,
                 .rank = rank,
                 .list = &id,
                 .count = 1,
                 .config = config,
                 .target = comm};
  return sluice_library_nccl_make(&m);
}

SLUICE_NCCL(int32_t, CommInitRank, void** comm, int ranks, UniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

SLUICE_NCCL(int32_t, CommInitRankScalable, void** comm, int ranks, int rank, int ids,
            UniqueId* list, void* config) {
  if (ids < 1) return kInvalidArgument;
  const Making m{.how = NcclHow::kScalable,
                 .ranks = ranks,
                 .rank = rank,
                 .list = list,
                 .count = static_cast<uint32_t>(ids),
                 .config = config,
                 .target = comm};
  return sluice_library_nccl_make(&m);
}

// One rank for each device, made together.
SLUICE_NCCL(int32_t, CommInitAll, void** comms, int devices, const int* list) {
  if (!comms || devices < 1) return kInvalidArgument;
  UniqueId id;
  if (const int32_t e = ncclGetUniqueId(&id); e != kSuccess) return e;
  int32_t status = sluice_library_nccl_group_start();
  for (int i = 0; i < devices && status == kSuccess; ++i) {
    const Making m{.how = NcclHow::kRank,
                   .ranks = devices,
                   .rank = i,
                   .list = &id,
                   .count = 1,
                   .device = list ? list[i] : i,
                   .target = &comms[i]};
    status = m.device < 0 ? int32_t{kInvalidArgument} : sluice_library_nccl_make(&m);
  }
  const int32_t end = sluice_library_nccl_group_end(status == kSuccess);
  return status != kSuccess ? status : end;
}

SLUICE_NCCL(int32_t, CommSplit, void* comm, int color, int key, void** made, void* config) {
  const Making m{.how = NcclHow::kSplit,
                 .color = color,
                 .key = key,
                 .parent = id_of(comm),
                 .config = config,
                 .target = made};
  return sluice_library_nccl_make(&m);
}

SLUICE_NCCL(int32_t, CommShrink, void* comm, int* excluded, int count, void** made, void* config,
            int flags) {
  if (count < 0) return kInvalidArgument;
  const Making m{.how = NcclHow::kShrink,
                 .flags = flags,
                 .parent = id_of(comm),
                 .list = excluded,
                 .count = static_cast<uint32_t>(count),
                 .config = config,
                 .target = made};
  return sluice_library_nccl_make(&m);
}

SLUICE_NCCL(int32_t, CommCuDevice, const void* comm, int* device) {
  return sluice_library_nccl_device(id_of(comm), device);
}

// As NCCL answers where it does not register buffers: there is nothing to take back.
SLUICE_NCCL(int32_t, CommRegister, const void* comm, void*, size_t, void** handle) {
  if (!handle || !is_communicator(comm)) return kInvalidArgument;
  *handle = nullptr;
  return kSuccess;
}

SLUICE_NCCL(int32_t, CommDeregister, const void* comm, void* handle) {
  return is_communicator(comm) && !handle ? kSuccess : kInvalidArgument;
}

// As NCCL answers where no rank's kernels reach another's memory by themselves: success and no
// window.
SLUICE_NCCL(int32_t, CommWindowRegister, const void* comm, void*, size_t, void** window, int) {
  if (!window || !is_communicator(comm)) return kInvalidArgument;
  sluice_library_note("NCCL windows (symmetric memory) are not available; NCCL goes without them");
  *window = nullptr;
  return kSuccess;
}

SLUICE_NCCL(int32_t, CommWindowDeregister, const void* comm, void* window) {
  return is_communicator(comm) && !window ? kSuccess : kInvalidArgument;
}

SLUICE_NCCL(int32_t, MemAlloc, void** memory, size_t bytes) {
  if (!memory) return kInvalidArgument;
  CUdeviceptr address = 0;
  const Result r = result(cuMemAlloc_v2(&address, bytes));
  *memory = reinterpret_cast<void*>(address);
  return r;
}

SLUICE_NCCL(int32_t, MemFree, void* memory) {
  return memory ? result(cuMemFree_v2(reinterpret_cast<CUdeviceptr>(memory))) : kSuccess;
}

SLUICE_NCCL(const char*, GetErrorString, int32_t code) {
  switch (code) {
    case 0:
      return "no error";
    case 1:
      return "unhandled cuda error (see the session's log on the GPU's node)";
    case 2:
      return "unhandled system error (see the session's log on the GPU's node)";
    case 3:
      return "internal error";
    case 4:
      return "invalid argument";
    case 5:
      return "invalid usage";
    case 6:
      return "remote process exited or there was a network error";
    case 7:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

// NCCL's log is the node's.
SLUICE_NCCL(void, ResetDebugInit) {}
