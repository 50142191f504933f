// SPDX-License-Identifier: Apache-2.0
// What CUPTI's Activity API looks like in memory: the records that Sluice reads and writes, the
// numbers in them, and the functions that it calls by name. Used by our libcupti (client/cupti), by
// the worker, which calls the node's (worker/profile), and by the software GPU, which has one of
// its own (softgpu/api/profiling.cc). Records look the same in CUDA 12.9 and 13.0; a test compiles
// NVIDIA's headers of both against this one (tests/codegen/test_profiling.py). Names are NVIDIA's
// where they are facts of the interface.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::cupti {

// CUptiResult.
enum Result : int {
  kSuccess = 0,
  kInvalidParameter = 1,
  kInvalidDevice = 2,
  kInvalidContext = 3,
  kInvalidOperation = 7,
  kParameterSizeNotSufficient = 10,
  kMaxLimitReached = 12,
  kNotInitialized = 15,
  kQueueEmpty = 18,
  kInvalidStream = 20,
  kInvalidKind = 21,
  kNotSupported = 27,
  kMultipleSubscribers = 39,
  kUnknown = 999,
};

// CUpti_ActivityKind.
enum Kind : uint32_t {
  kMemcpy = 1,
  kMemset = 2,
  kKernel = 3,
  kDriver = 4,
  kRuntime = 5,
  kConcurrentKernel = 10,
  kOverhead = 17,
  kMemcpyPeer = 22,
  kExternalCorrelation = 39,
};
inline constexpr uint64_t bit(Kind kind) { return uint64_t{1} << kind; }

// CUpti_ActivityMemcpyKind and CUpti_ActivityMemoryKind, as far as Sluice has a say in them.
enum CopyKind : uint8_t { kToDevice = 1, kToHost = 2, kOnDevice = 8, kOnHost = 9, kPeer = 10 };
enum MemoryKind : uint8_t { kPageable = 1, kPinned = 2, kDevice = 3, kManagedStatic = 7 };
// The last CUpti_ActivityLaunchType.
inline constexpr uint32_t kCommandListLaunch = 3;

// CUpti_ExternalCorrelationKind: those that there are.
inline constexpr uint32_t kExternalKinds = 6;
inline constexpr uint32_t kCustom0 = 3;

// CUpti_CallbackDomain, CUpti_ApiCallbackSite.
enum Domain : uint32_t { kDriverApi = 1, kRuntimeApi = 2, kResource = 3, kDomains = 7 };
enum Site : uint32_t { kEnter = 0, kExit = 1 };

// CUpti_ActivityFlag of a flush.
inline constexpr uint32_t kFlushForced = 1;

#define SLUICE_CUPTI_RECORD struct __attribute__((packed, aligned(8)))

// CUpti_ActivityKernel10 of CUDA 13.0; CUpti_ActivityKernel9 of 12.9 ends before `device_launched`.
SLUICE_CUPTI_RECORD KernelRecord {
  uint32_t kind;
  uint8_t cache_config;
  uint8_t shared_config;
  uint16_t registers;
  uint32_t global_cache_requested, global_cache_executed;
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3], block[3];
  int32_t static_shared, dynamic_shared;
  uint32_t local_per_thread, local_total;
  uint32_t correlation;
  int64_t grid_id;
  const char* name;
  void* reserved0;
  uint64_t queued, submitted;
  uint8_t launch_type, carveout_requested, carveout, padding;
  uint32_t shared_executed;
  uint64_t graph_node;
  uint32_t shared_limit;
  uint32_t graph;
  void* access_policy;
  uint32_t channel, channel_type;
  uint32_t cluster[3];
  uint32_t cluster_policy;
  uint64_t local_total_wide;
  uint32_t most_cluster, active_clusters;
  uint8_t device_launched;
  uint8_t padding3[7];
};

// CUpti_ActivityMemcpy6.
SLUICE_CUPTI_RECORD CopyRecord {
  uint32_t kind;
  uint8_t copy_kind, from_kind, to_kind, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation, runtime_correlation, pad;
  void* reserved0;
  uint64_t graph_node;
  uint32_t graph, channel, channel_type;
  uint8_t device_launched;
  uint8_t pad2[3];
  uint64_t copies;
};

// CUpti_ActivityMemcpyPtoP4.
SLUICE_CUPTI_RECORD PeerCopyRecord {
  uint32_t kind;
  uint8_t copy_kind, from_kind, to_kind, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream;
  uint32_t from_device, from_context, to_device, to_context;
  uint32_t correlation;
  void* reserved0;
  uint64_t graph_node;
  uint32_t graph, channel, channel_type;
};

// CUpti_ActivityMemset4.
SLUICE_CUPTI_RECORD FillRecord {
  uint32_t kind, value;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
  uint16_t flags, memory_kind;
  uint32_t pad;
  void* reserved0;
  uint64_t graph_node;
  uint32_t graph, channel, channel_type;
  uint8_t device_launched;
  uint8_t pad2[3];
};

// CUpti_ActivityAPI.
SLUICE_CUPTI_RECORD CallRecord {
  uint32_t kind, cbid;
  uint64_t start, end;
  uint32_t process, thread, correlation, result;
};

// CUpti_ActivityExternalCorrelation.
SLUICE_CUPTI_RECORD ExternalRecord {
  uint32_t kind, external_kind;
  uint64_t external;
  uint32_t correlation, reserved;
};

// CUpti_CallbackData.
struct CallbackData {
  uint32_t site;
  const char* function;
  const void* params;
  void* result;
  const char* symbol;
  void* context;
  uint32_t context_uid;
  uint64_t* data;
  uint32_t correlation;
};

static_assert(sizeof(KernelRecord) == 216 && offsetof(KernelRecord, name) == 104 &&
              offsetof(KernelRecord, local_total_wide) == 192);
static_assert(sizeof(CopyRecord) == 96 && sizeof(PeerCopyRecord) == 96);
static_assert(sizeof(FillRecord) == 88 && sizeof(CallRecord) == 40 && sizeof(ExternalRecord) == 24);
static_assert(sizeof(CallbackData) == 72);

// CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc.
using BufferRequested = void (*)(uint8_t** buffer, size_t* size, size_t* most_records);
using BufferCompleted = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t size,
                                 size_t valid);

// What the worker calls of the node's, by name: F(type of the result and parameters, name).
#define SLUICE_CUPTI_FUNCTIONS(F)                                                \
  F(int (*)(uint32_t*), cuptiGetVersion)                                         \
  F(int (*)(uint64_t*), cuptiGetTimestamp)                                       \
  F(int (*)(::sluice::cupti::BufferRequested, ::sluice::cupti::BufferCompleted), \
    cuptiActivityRegisterCallbacks)                                              \
  F(int (*)(uint32_t), cuptiActivityEnable)                                      \
  F(int (*)(uint32_t), cuptiActivityDisable)                                     \
  F(int (*)(uint32_t), cuptiActivityFlushAll)                                    \
  F(int (*)(uint8_t*, size_t, const void**), cuptiActivityGetNextRecord)         \
  F(int (*)(void*, uint32_t, size_t*), cuptiActivityGetNumDroppedRecords)        \
  F(int (*)(uint32_t, uint64_t), cuptiActivityPushExternalCorrelationId)         \
  F(int (*)(uint32_t, uint64_t*), cuptiActivityPopExternalCorrelationId)         \
  F(int (*)(void*, void*, uint8_t, uint32_t*), cuptiGetStreamIdEx)

}  // namespace sluice::cupti
