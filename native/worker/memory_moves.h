// SPDX-License-Identifier: Apache-2.0
// A session's device memory on its way to host memory and back, under the same addresses. What can
// move is what the client's allocations are: slabs, and allocations of the virtual memory API that
// are mapped. What stays is counted as staying: memory that other sessions may have open or that is
// theirs, allocations without a mapping, arrays, code, and what NVIDIA's libraries took.
//
// Called by suspension.h while nothing of the session runs. It promises that memory is taken off a
// GPU only when all of it has been copied, and that a failed return leaves the host's copy whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/session.h"

namespace sluice::worker {

class MemoryMoves {
 public:
  explicit MemoryMoves(Session& session) : session_(session) {}
  ~MemoryMoves() { forget_host(); }
  MemoryMoves(const MemoryMoves&) = delete;

  // Looks through the session's memory: how much can move, and how much of a vGPU stays, in bytes.
  void look();
  uint64_t movable() const { return movable_; }
  uint64_t staying(uint32_t vgpu) const { return staying_[vgpu]; }

  // Host memory for it, piece after piece; the descriptor becomes its own.
  struct HostPiece {
    int memory;
    uint64_t bytes;
  };
  // Everything that can move, into these pieces, whose descriptors become its own. False with
  // `error`: all is where it was, unless `broken`, after which the session cannot go on.
  bool out(const std::vector<HostPiece>& host, std::string* error, bool* broken);
  // And back. False with `error`: it is in host memory still, unless `broken`.
  bool back(std::string* error, bool* broken);

 private:
  struct Place {  // where a piece is mapped
    Vgpu* window;
    uint64_t address;
    std::vector<CUmemAccessDesc> access;
  };
  struct Piece {  // one physical allocation
    Vgpu* owner;
    Vgpu* reader;         // whose GPU copies it, by the first of its places
    uint64_t allocation;  // an id of SessionObjects::allocations; 0: a slab
    uint64_t bytes;
    uint64_t host;  // its offset there
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle;
    std::vector<Place> places;
  };

  void add_place(Piece* piece, Vgpu& window, uint64_t address);
  Vgpu* reader_of(const std::vector<CUmemAccessDesc>& access);
  bool take_host(const std::vector<HostPiece>& pieces, std::string* error);
  void register_host(const std::vector<HostPiece>& pieces);
  void forget_host();
  CUresult copy(bool out);
  CUresult copy_run(const Piece& first, uint64_t bytes, bool out);
  CUresult create(Piece* piece);
  CUresult release(Piece& piece);
  CUresult give_access(const Piece& piece);
  void know_again(const Piece& piece);

  Session& session_;
  std::vector<Piece> pieces_;
  std::vector<uint64_t> staying_;
  uint64_t movable_ = 0;
  std::byte *reserved_ = nullptr, *host_ = nullptr;  // the addresses, and where it begins there
  uint64_t host_bytes_ = 0;
  std::vector<uint64_t> chunks_;      // where each ends: a copy lies in one
  std::vector<uint64_t> registered_;  // where those begin that the driver knows
};

}  // namespace sluice::worker
