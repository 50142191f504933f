// SPDX-License-Identifier: Apache-2.0
// Copies and fills as stream work. Device addresses are checked when the work runs, so that memory
// unmapped in between ends the context with an error and not the process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/cuda_driver.h"
#include "softgpu/runtime/context.h"

namespace sluice::softgpu {

// One side of a copy: a box of rows in memory.
struct CopySide {
  uintptr_t address = 0;
  size_t pitch = 0;     // bytes from row to row
  size_t slice = 0;     // bytes from slice to slice
  bool device = false;  // must lie in memory that the device may touch
  bool pinned = true;   // false for pageable host memory
};

struct CopyBox {
  CopySide to;
  CopySide from;
  size_t width = 0;  // bytes
  size_t height = 1;
  size_t depth = 1;
  bool between_devices = false;  // each end may be another device's
};

// What kind of memory the address is; false if a device address is not known.
bool classify(CopySide& side, size_t bytes, bool must_be_device);

// As a graph's copy node describes it (api/copy.cc).
CUresult copy_box_of(const CUDA_MEMCPY3D& description, CopyBox& box);

// Queues the copy; `wait` returns after it has been made. Pageable memory is read or written before
// the call returns, as CUDA promises.
CUresult copy(Context& context, Stream& stream, const CopyBox& box, bool wait);

// The copy itself, on the calling thread.
void run_copy(Context& context, const CopyBox& box);

// `height` rows of `width` elements of 1, 2 or 4 bytes.
struct Fill {
  uintptr_t address = 0;
  size_t pitch = 0;
  uint32_t value = 0;
  unsigned element = 1;
  size_t width = 0;
  size_t height = 1;
  bool empty() const { return width == 0 || height == 0; }
};
// What CUDA refuses at the call.
CUresult check_fill(const Fill& fill);
void run_fill(Context& context, const Fill& fill);

// Queues the fill; `wait` returns after it has been made.
CUresult fill(Context& context, Stream& stream, const Fill& fill, bool wait);

}  // namespace sluice::softgpu
