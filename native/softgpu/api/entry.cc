// SPDX-License-Identifier: Apache-2.0
// cuInit, versions, error names, and the look-up of functions by name.
#include <pthread.h>

#include <atomic>
#include <cstring>
#include <string>

#include "softgpu/api/api.h"

namespace sluice::softgpu {
namespace {

std::atomic<bool> initialised{false};
std::atomic<bool> forked{false};

struct ErrorRow {
  CUresult code;
  const char* name;
  const char* text;
};

constexpr ErrorRow kErrors[] = {
#define SLUICE_ERROR(code, text) {code, #code, text}
    SLUICE_ERROR(CUDA_SUCCESS, "no error"),
    SLUICE_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    SLUICE_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    SLUICE_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    SLUICE_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    SLUICE_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    SLUICE_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    SLUICE_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    SLUICE_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    SLUICE_ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    SLUICE_ERROR(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    SLUICE_ERROR(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    SLUICE_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU,
                 "no kernel image is available for execution on the device"),
    SLUICE_ERROR(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    SLUICE_ERROR(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    SLUICE_ERROR(CUDA_ERROR_CONTEXT_ALREADY_IN_USE,
                 "exclusive-thread device already in use by a different thread"),
    SLUICE_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
                 "peer access is not supported between these two devices"),
    SLUICE_ERROR(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    SLUICE_ERROR(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                 "the provided PTX was compiled with an unsupported toolchain."),
    SLUICE_ERROR(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
    SLUICE_ERROR(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    SLUICE_ERROR(CUDA_ERROR_OPERATING_SYSTEM,
                 "OS call failed or operation not supported on this OS"),
    SLUICE_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    SLUICE_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    SLUICE_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    SLUICE_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    SLUICE_ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    SLUICE_ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    SLUICE_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    SLUICE_ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    SLUICE_ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
                 "cannot set while device is active in this process"),
    SLUICE_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    SLUICE_ERROR(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    SLUICE_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                 "part or all of the requested memory range is already mapped"),
    SLUICE_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                 "pointer does not correspond to a registered memory region"),
    SLUICE_ERROR(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    SLUICE_ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    SLUICE_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    SLUICE_ERROR(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    SLUICE_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    SLUICE_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    SLUICE_ERROR(CUDA_ERROR_ILLEGAL_STATE,
                 "the operation cannot be performed in the present state"),
    SLUICE_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                 "operation not permitted when stream is capturing"),
    SLUICE_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                 "operation failed due to a previous error during capture"),
    SLUICE_ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE,
                 "operation would result in a merge of separate capture sequences"),
    SLUICE_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
                 "capture was not ended in the same stream as it began"),
    SLUICE_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    SLUICE_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                 "dependency created on uncaptured work in another stream"),
    SLUICE_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                 "operation would make the legacy stream depend on a capturing blocking stream"),
    SLUICE_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                 "attempt to terminate a thread-local capture sequence from another thread"),
    SLUICE_ERROR(CUDA_ERROR_CAPTURED_EVENT,
                 "operation not permitted on an event last recorded in a capturing stream"),
    SLUICE_ERROR(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                 "the graph update was not performed because it included changes which violated "
                 "constraints specific to instantiated graph update"),
    SLUICE_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
#undef SLUICE_ERROR
};

const ErrorRow* error_row(CUresult code) {
  for (const ErrorRow& row : kErrors) {
    if (row.code == code) return &row;
  }
  return nullptr;
}

}  // namespace

CUresult ready() {
  if (!initialised.load(std::memory_order_acquire)) return CUDA_ERROR_NOT_INITIALIZED;
  if (forked.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  if (in_host_callback()) return CUDA_ERROR_NOT_PERMITTED;
  return CUDA_SUCCESS;
}

}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuInit(unsigned int flags) {
  return guarded([&]() -> CUresult {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    // Threads do not survive a fork, so the child of a process that used CUDA cannot use it.
    if (forked.load()) return CUDA_ERROR_NOT_INITIALIZED;
    initialise_devices();
    if (devices().empty()) return CUDA_ERROR_NO_DEVICE;
    static const int once = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
    (void)once;
    checkpoint::begin();
    initialised.store(true, std::memory_order_release);
    return CUDA_SUCCESS;
  });
}

CUresult cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  const ErrorRow* row = error_row(error);
  *text = row ? row->name : nullptr;
  return row ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  const ErrorRow* row = error_row(error);
  *text = row ? row->text : nullptr;
  return row ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Private tables are not part of the documented interface.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
  if (table) *table = nullptr;
  log(1, "cuGetExportTable: the software GPU has no private tables");
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuProfilerStart(void) {
  return with_context([](Context&) { return CUDA_SUCCESS; });
}
CUresult cuProfilerStop(void) {
  return with_context([](Context&) { return CUDA_SUCCESS; });
}
