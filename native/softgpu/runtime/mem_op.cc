// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/mem_op.h"

#include <atomic>
#include <cstdlib>
#include <shared_mutex>
#include <type_traits>

#include "softgpu/memory/allocations.h"
#include "softgpu/memory/range_map.h"

namespace sluice::softgpu {
namespace {

std::atomic<int> streams_that_wait{0};

bool loads_stand_still() {
  static const bool told = std::getenv("SLUICE_SOFTGPU_LOADS_STAND_STILL") != nullptr;
  return told;
}

std::shared_mutex& loads_mutex() {
  static auto* mutex = new std::shared_mutex;
  return *mutex;
}

// Reads or writes one word if the device may; false if it may not (any more).
template <class T>
bool access(int device, uintptr_t address, T& value, bool write) {
  MemoryView view;
  view.enter(device);
  bool ok = view.accessible(address, sizeof(T), write);
  if (ok) {
    T* word = reinterpret_cast<T*>(address);
    if (write) {
      __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
    } else {
      value = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    }
  }
  view.leave();
  return ok;
}

template <class T>
bool satisfied(T held, T wanted, unsigned condition) {
  switch (condition) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<std::make_signed_t<T>>(held - wanted) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return held == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
      return (held & wanted) != 0;
    default:
      return static_cast<T>(~(held | wanted)) != 0;
  }
}

template <class T>
CUresult check_word(CUdeviceptr address) {
  return address % sizeof(T) == 0 && Allocations::instance().covers(address, sizeof(T))
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

template <class T>
void write(Context& context, CUdeviceptr address, T value) {
  if (!access(context.device().ordinal, address, value, true)) {
    context.poison(CUDA_ERROR_ILLEGAL_ADDRESS, "stream write to memory that is not mapped");
  }
  notify_pollers();
}

template <class T>
void wait(Context& context, CUdeviceptr address, T value, unsigned condition) {
  bool lost = false;
  streams_that_wait.fetch_add(1);
  poll_until(
      [&] {
        T held{};
        lost = !access(context.device().ordinal, address, held, false);
        return lost || satisfied(held, value, condition);
      },
      [&] { return context.error() != 0 || context.dead(); });
  streams_that_wait.fetch_sub(1);
  if (lost) {
    context.poison(CUDA_ERROR_ILLEGAL_ADDRESS, "stream wait on memory that is not mapped");
  }
}

}  // namespace

LoadStandsStill::LoadStandsStill(const Context& context) {
  if (!loads_stand_still()) return;
  loads_mutex().lock();
  poll_until([] { return streams_that_wait.load() == 0; },
             [&] { return context.error() != 0 || context.dead(); });
}

LoadStandsStill::~LoadStandsStill() {
  if (loads_stand_still()) loads_mutex().unlock();
}

void wait_for_loads() {
  if (loads_stand_still()) const std::shared_lock held_up(loads_mutex());
}

CUresult check_mem_op(const CUstreamBatchMemOpParams& op) {
  switch (op.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      if ((op.waitValue.flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      return op.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32
                 ? check_word<uint32_t>(op.waitValue.address)
                 : check_word<uint64_t>(op.waitValue.address);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return check_word<uint32_t>(op.writeValue.address);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return check_word<uint64_t>(op.writeValue.address);
    case CU_STREAM_MEM_OP_BARRIER:
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      return CUDA_SUCCESS;  // operations of a stream are ordered anyway
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

void run_mem_op(Context& context, const CUstreamBatchMemOpParams& op) {
  switch (op.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return wait<uint32_t>(context, op.waitValue.address, op.waitValue.value,
                            op.waitValue.flags & 3);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return wait<uint64_t>(context, op.waitValue.address, op.waitValue.value64,
                            op.waitValue.flags & 3);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return write<uint32_t>(context, op.writeValue.address, op.writeValue.value);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return write<uint64_t>(context, op.writeValue.address, op.writeValue.value64);
    default:
      return;
  }
}

}  // namespace sluice::softgpu
