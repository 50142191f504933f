// SPDX-License-Identifier: Apache-2.0
// Host memory that a session's device memory was moved to at one time: pieces that the server made,
// side by side. Each is made known to the driver when it is about to be used, while the copies of
// those before it are under way: shared memory is registered, which works or makes copies slower;
// memory that the node's driver made is opened and mapped, which is twice as fast, and without
// which nothing is copied. It stays known until somebody else needs the room, so that the next move
// has nothing to map. The process alone holds it; with its end the kernel has the pages back, and
// nobody gets them before they are empty. Owned by memory_moves.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/driver.h"
#include "worker/steps.h"

namespace sluice::worker {

class HostArea {
 public:
  struct Piece {
    int memory;  // shared memory, or a descriptor that the driver exported
    uint64_t bytes;
    bool of_driver = false;
  };
  struct Run {
    uint64_t begin, end;
  };
  // Takes as many of the pieces as `bytes` need; their descriptors, and those of the rest, are its
  // own whatever comes of it; a context is current. `devices`: the driver's ordinals of the GPUs
  // that copy. nullptr with `error`: they are fewer than `bytes`, no whole slabs, or have no
  // addresses.
  static std::unique_ptr<HostArea> take(const Driver& driver, const std::vector<Piece>& pieces,
                                        uint64_t bytes, const std::vector<int>& devices,
                                        Steps* steps, std::string* error);
  ~HostArea();  // a context is current
  HostArea(const HostArea&) = delete;

  std::byte* at(uint64_t offset) const;
  // Makes the piece that `offset` is in known, if it is not yet; a context is current.
  CUresult enlist(uint64_t offset);
  // The driver knows nothing of it any more, until it is enlisted again; a context is current.
  void delist();
  // How much of [offset, end) one copy may take: the driver takes none that reaches over two
  // pieces that it was told of.
  uint64_t in_one(uint64_t offset, uint64_t end) const;
  // What is there, in order, and how much that is.
  std::vector<Run> runs() const;
  uint64_t bytes() const;
  // Of that what the driver did not take when it was enlisted: copies to it are slower.
  uint64_t unknown_bytes() const;
  // Gives up the last of the pieces that none of these lies in, which are in order, until that is
  // so much; returns how much it was. A context is current.
  uint64_t give_up(const std::vector<Run>& used, uint64_t bytes);

 private:
  struct Chunk {
    uint64_t begin, end;
    std::byte* address;
    int memory;                               // -1: shared memory, which is mapped
    CUmemGenericAllocationHandle handle = 0;  // of what is open
    bool is_tried = false;                    // it was enlisted
    bool is_known = false;                    // to the driver
    bool is_gone = false;                     // it was given up
  };

  HostArea(const Driver& driver, const std::vector<int>& devices);
  bool map(const std::vector<Piece>& pieces, std::string* error);
  bool map_shared(const std::vector<Piece>& pieces, std::string* error);
  bool reserve(const std::vector<Piece>& pieces, std::string* error);
  CUresult open(Chunk* chunk);
  void delist(Chunk* chunk);
  void give_up(Chunk* chunk);
  std::vector<Chunk>::const_iterator chunk_of(uint64_t offset) const;

  const Driver& driver_;
  std::vector<CUmemAccessDesc> access_;
  void* shared_ = nullptr;  // the addresses of shared memory
  uint64_t shared_bytes_ = 0;
  CUdeviceptr reserved_ = 0;  // and of the driver's
  uint64_t reserved_bytes_ = 0;
  std::vector<Chunk> chunks_;  // in a row; a copy lies in one
};

}  // namespace sluice::worker
