// SPDX-License-Identifier: Apache-2.0
// Copies between device addresses, of one vGPU or of two.
#include "client/core/addresses.h"
#include "client/core/session.h"
#include "client/driver/transfer.h"
#include "client/objects/device.h"
#include "client/objects/stream.h"
#include "wire/bodies/commands.h"

namespace sluice::client {

void note_use(Session* s, Stream* stream, uint64_t address) {
  if (s->devices().size() == 1) return;
  Device* d = device_of_address(s, address);
  if (d && d != stream->device) d->users.fetch_or(1ull << stream->device->index);
}

CUresult copy_on_device(Session* s, Stream* stream, uint64_t to, uint64_t to_pitch, uint64_t from,
                        uint64_t from_pitch, Rect r, bool wait) {
  if (r.width == 0 || r.rows == 0) return CUDA_SUCCESS;
  note_use(s, stream, to);
  note_use(s, stream, from);
  const uint32_t context = stream->device->context();
  const wire::CopyOnDevice c{stream->wire_id, to,     to_pitch, from, from_pitch,
                             r.width,         r.rows, wait,     0};
  if (!wait) return s->post(wire::kCopyOnDevice, c, {}, stream, context);
  return s->exchange(wire::kCopyOnDevice, c, {}, {}, nullptr, stream, context);
}

}  // namespace sluice::client
