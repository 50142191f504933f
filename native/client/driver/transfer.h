// SPDX-License-Identifier: Apache-2.0
// Moving bytes between host and device over whatever channel there is (rule 5): in place when the
// host memory lies in the arena, inside the command when it is small, else through staging pieces
// of the arena in a pipeline, or in inline pieces where no memory is shared. Used by every copy of
// client/driver. Rectangles: `rows` rows of `width` bytes; one row is a plain copy.
#pragma once

#include <cstdint>

#include "abi/cuda_driver.h"

namespace sluice::client {

class Session;
struct Stream;

struct Rect {
  uint64_t width = 0;
  uint64_t rows = 1;
};

// The device's side of a copy: memory, or a place in an array (x in bytes).
struct DeviceSide {
  uint64_t address = 0, pitch = 0;
  uint64_t array = 0;  // its id; 0: memory
  uint64_t x = 0, y = 0, z = 0;
  uint64_t element = 1;  // bytes that no piece of a copy divides

  DeviceSide at(uint64_t row, uint64_t column) const {
    DeviceSide side = *this;
    if (array) {
      side.x += column, side.y += row;
    } else {
      side.address += row * pitch + column;
    }
    return side;
  }
};

// Reads the host side before it returns, unless it lies in the arena and `wait` is false. `wait`:
// until the copy is done where CUDA waits (pinned memory); pageable sources are done once staged,
// as CUDA's are.
CUresult copy_to_device(Session* s, Stream* stream, const DeviceSide& to, const void* from,
                        uint64_t from_pitch, Rect rect, bool wait);
// The host side is written when it returns, unless it lies in the arena and `wait` is false.
CUresult copy_to_host(Session* s, Stream* stream, void* to, uint64_t to_pitch,
                      const DeviceSide& from, Rect rect, bool wait);
CUresult copy_on_device(Session* s, Stream* stream, uint64_t to, uint64_t to_pitch, uint64_t from,
                        uint64_t from_pitch, Rect rect, bool wait);

// The stream is about to touch memory that may be another device's. Copies and fills need no access
// that was enabled; the memory is in use all the same.
void note_use(Session* s, Stream* stream, uint64_t address);

}  // namespace sluice::client
