// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/copy.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "softgpu/memory/allocations.h"
#include "softgpu/memory/range_map.h"
#include "softgpu/runtime/capture.h"
#include "softgpu/runtime/mem_op.h"
#include "softgpu/runtime/profiling.h"

namespace sluice::softgpu {
namespace {

// Pageable sources up to this size are staged and the call returns, as in CUDA.
constexpr size_t kStaged = 64u << 10;
// A thread that copies lets go of the ranges after this many bytes, so that unmapping waits little.
constexpr size_t kPiece = 4u << 20;

bool move(MemoryView& view, uintptr_t to, bool check_to, uintptr_t from, bool check_from,
          size_t bytes) {
  while (bytes != 0) {
    size_t piece = std::min(bytes, kPiece);
    view.tick();
    if (check_to && !view.writable(to, piece)) return false;
    if (check_from && !view.readable(from, piece)) return false;
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), piece);
    to += piece;
    from += piece;
    bytes -= piece;
  }
  return true;
}

// By unified addresses any device copies and fills what cuMemAlloc gave any other; of mappings the
// virtual memory API says who may touch them.
bool everybodys(uintptr_t address) {
  std::optional<Allocation> found = Allocations::instance().find(address);
  return !found || found->kind != AllocationKind::kMapped;
}

bool is_host(uintptr_t address) {
  std::optional<Allocation> found = Allocations::instance().find(address);
  return !found || found->host();
}

void enter(MemoryView& view, const Context& context, bool for_all) {
  if (for_all) {
    view.enter_for_all();
  } else {
    view.enter(context.device().ordinal);
  }
}

}  // namespace

void run_copy(Context& context, const CopyBox& box) {
  const profiling::Running running(context, box);
  if (context.device().copies.set() && is_host(box.to.address) != is_host(box.from.address))
    context.device().copies.take(box.width * box.height * box.depth);
  MemoryView view;
  enter(view, context,
        box.between_devices || (everybodys(box.to.address) && everybodys(box.from.address)));
  bool ok = true;
  bool flat = box.depth == 1 &&
              (box.height == 1 || (box.to.pitch == box.width && box.from.pitch == box.width));
  if (flat) {
    ok = move(view, box.to.address, box.to.device, box.from.address, box.from.device,
              box.width * box.height);
  } else {
    for (size_t z = 0; ok && z < box.depth; ++z) {
      for (size_t y = 0; ok && y < box.height; ++y) {
        ok = move(view, box.to.address + z * box.to.slice + y * box.to.pitch, box.to.device,
                  box.from.address + z * box.from.slice + y * box.from.pitch, box.from.device,
                  box.width);
      }
    }
  }
  view.leave();
  if (!ok) context.poison(CUDA_ERROR_ILLEGAL_ADDRESS, "copy to or from memory that is not mapped");
  notify_pollers();
}

bool classify(CopySide& side, size_t bytes, bool must_be_device) {
  Allocations& known = Allocations::instance();
  bool covered = bytes == 0 || known.covers(side.address, bytes);
  if (must_be_device) {
    side.device = true;
    return covered;
  }
  std::optional<Allocation> found = known.find(side.address);
  // As NVIDIA's driver: no copy runs from one pinned piece of host memory into the next.
  if (found && found->host() && bytes > found->base + found->size - side.address) return false;
  side.device = covered && found.has_value();
  side.pinned = side.device;
  return true;
}

CUresult copy(Context& context, Stream& stream, const CopyBox& box, bool wait) {
  wait_for_loads();
  if (box.width == 0 || box.height == 0 || box.depth == 0) return CUDA_SUCCESS;
  // In a graph, pageable memory is read when the node runs.
  if (auto answer = captured(stream, [&] { return Work(CopyWork{box}); })) return *answer;
  if (wait) {
    if (CUresult wrong = unsafe_while_capturing(); wrong != CUDA_SUCCESS) return wrong;
  }
  bool from_pageable = !box.from.device && !box.from.pinned;
  bool to_pageable = !box.to.device && !box.to.pinned;
  if (wait || to_pageable || from_pageable) {
    bool flat = box.height == 1 && box.depth == 1;
    if (!wait && !to_pageable && flat && box.width <= kStaged) {
      auto staged = std::make_shared<std::vector<uint8_t>>(box.width);
      std::memcpy(staged->data(), reinterpret_cast<const void*>(box.from.address), box.width);
      CopyBox rest = box;
      rest.from = {reinterpret_cast<uintptr_t>(staged->data()), box.width, 0, false, true};
      context.submit(stream, [&context, rest, staged] { run_copy(context, rest); });
      return CUDA_SUCCESS;
    }
    context.submit_and_wait(stream, [&context, &box] { run_copy(context, box); });
    return static_cast<CUresult>(context.error());
  }
  context.submit(stream, [&context, box] { run_copy(context, box); });
  return CUDA_SUCCESS;
}

CUresult check_fill(const Fill& f) {
  if (f.element != 1 && f.element != 2 && f.element != 4) return CUDA_ERROR_INVALID_VALUE;
  if (f.address % f.element != 0 || (f.height > 1 && f.pitch % f.element != 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (f.empty()) return CUDA_SUCCESS;
  if (f.width > SIZE_MAX / f.element) return CUDA_ERROR_INVALID_VALUE;
  size_t row = f.width * f.element;
  if (f.height > 1 && f.pitch < row) return CUDA_ERROR_INVALID_VALUE;
  size_t span = (f.height - 1) * f.pitch + row;
  return Allocations::instance().covers(f.address, span) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void run_fill(Context& context, const Fill& f) {
  const profiling::Running running(context, f);
  MemoryView view;
  enter(view, context, everybodys(f.address));
  const size_t row = f.width * f.element;
  bool ok = true;
  for (size_t y = 0; ok && y < f.height; ++y) {
    uintptr_t start = f.address + y * f.pitch;
    for (size_t done = 0; ok && done < row;) {
      size_t piece = std::min(row - done, kPiece);
      view.tick();
      ok = view.writable(start + done, piece);
      if (!ok) break;
      if (f.element == 1) {
        std::memset(reinterpret_cast<void*>(start + done), static_cast<int>(f.value), piece);
      } else if (f.element == 2) {
        std::fill_n(reinterpret_cast<uint16_t*>(start + done), piece / 2,
                    static_cast<uint16_t>(f.value));
      } else {
        std::fill_n(reinterpret_cast<uint32_t*>(start + done), piece / 4, f.value);
      }
      done += piece;
    }
  }
  view.leave();
  if (!ok) context.poison(CUDA_ERROR_ILLEGAL_ADDRESS, "fill of memory that is not mapped");
  notify_pollers();
}

CUresult fill(Context& context, Stream& stream, const Fill& f, bool wait) {
  if (CUresult wrong = check_fill(f); wrong != CUDA_SUCCESS) return wrong;
  if (f.empty()) return CUDA_SUCCESS;
  if (auto answer = captured(stream, [&] { return Work(f); })) return *answer;
  auto work = [f, &context] { run_fill(context, f); };
  if (wait) {
    context.submit_and_wait(stream, work);
    return static_cast<CUresult>(context.error());
  }
  context.submit(stream, work);
  return CUDA_SUCCESS;
}

}  // namespace sluice::softgpu
