// SPDX-License-Identifier: Apache-2.0
// Pinned memory through which one direction of a link between nodes goes (node_link.h), in pieces:
// a copy has one while the GPU writes or reads it, and the connection until the peer has
// acknowledged it. Everything is taken when the link opens: later, while streams wait, a driver
// might wait for those before it gives pinned memory. Each vGPU has a stream of the worker's own
// for it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "worker/vgpu.h"

namespace sluice::worker {

class Staging {
 public:
  static constexpr size_t kPieceBytes = 2 << 20;
  static constexpr size_t kPieces = 8;

  // nullptr: there is no pinned memory, or no stream.
  static std::unique_ptr<Staging> make(const Driver& driver,
                                       std::vector<std::unique_ptr<Vgpu>>& vgpus);
  ~Staging();

  struct Piece {
    std::shared_ptr<std::byte> at;  // given back with its last holder
    size_t index = 0;
    explicit operator bool() const { return at != nullptr; }
  };
  // nullptr: all are held.
  Piece take();
  // Waits until one is given back, at most so long.
  void wait(int milliseconds);

  CUstream stream(uint32_t device) const { return lanes_[device].stream; }
  // The GPU is about to be done with a piece at this point of the device's stream; waits for that.
  CUresult mark(uint32_t device, const Piece& piece);
  CUresult await(uint32_t device, const Piece& piece);

 private:
  struct Lane {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    std::vector<CUevent> events;  // by piece
  };
  explicit Staging(const Driver& driver) : driver_(driver) {}

  const Driver& driver_;
  std::byte* memory_ = nullptr;
  std::vector<Lane> lanes_;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<size_t> free_;
};

}  // namespace sluice::worker
