// SPDX-License-Identifier: Apache-2.0
// A session's device memory on its way to host memory and back, under the same addresses. What can
// move is what the client's allocations are: slabs, and allocations of the virtual memory API that
// are mapped; and what NVIDIA's libraries allocated in calls of the session's (library/laid.h).
// What stays is counted as staying: memory that other sessions may have open or that is theirs,
// allocations without a mapping, arrays, code, and what else libraries took.
//
// What was moved to is kept, mapped, when the memory is back, where the server says so: the next
// move goes there first, and takes new host memory only for what finds no room in it.
//
// Called by suspension.h while nothing of the session runs, but for give_up_host(); by one thread
// at a time. It promises that memory is taken off a GPU only when all of it has been copied, and
// that a failed return leaves the host's copy whole.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "worker/host_area.h"
#include "worker/session.h"

namespace sluice::worker {

class MemoryMoves {
 public:
  explicit MemoryMoves(Session& session) : session_(session) {}
  ~MemoryMoves();
  MemoryMoves(const MemoryMoves&) = delete;

  // Looks through the session's memory, all of which is on its GPUs: how much can move, and how
  // much of a vGPU stays, in bytes.
  void look();
  uint64_t movable() const;
  uint64_t movable(uint32_t vgpu) const { return movable_[vgpu]; }
  uint64_t staying(uint32_t vgpu) const { return staying_[vgpu]; }
  // Of what stays: what other sessions have open, or may.
  uint64_t exported(uint32_t vgpu) const { return exported_[vgpu]; }
  uint64_t out(uint32_t vgpu) const;

  // Chooses what is to go, so that at least so much of each vGPU is out, as far as it can move;
  // nothing said: all. Returns how much host memory that takes.
  uint64_t plan(const std::vector<uint64_t>& out);
  // Of what is planned, what needs host memory beside what is kept.
  uint64_t fresh();
  // The host memory that it has beyond what is out.
  uint64_t kept() const;
  // What was planned, into what is kept and these pieces, whose descriptors become its own. False
  // with `error`: all is where it was, unless `broken`, after which the session cannot go on.
  bool out(const std::vector<HostArea::Piece>& host, std::string* error, bool* broken);
  // Everything back. False with `error`: it is where it was, unless `broken`. Where a GPU has too
  // little free, `missing` says of which vGPU, and how much.
  struct Missing {
    uint32_t vgpu = 0;
    uint64_t bytes = 0;
  };
  bool back(std::string* error, bool* broken, Missing* missing);
  // What the parts of the last move took, in words.
  const std::string& steps() const { return steps_; }
  // The driver forgets the host memory of what is out, which it would have to carry along where
  // the context leaves the GPU; what comes back has it registered again. What nothing is out in is
  // given up.
  void delist_host();
  // Behind back(): the host memory of this move stays, up to what the vGPUs have, and what nothing
  // of it lay in is given up.
  void keep_host();
  // Gives up so much of the host memory that nothing is out in, or all of that; takes a tenth of a
  // second for some GiB.
  void give_up_host(uint64_t bytes = ~0ull);

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
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle;  // 0: it is out
    std::vector<Place> places;
    bool laid = false;         // a library's, under a reservation of its own
    HostArea* area = nullptr;  // where it is, or goes
    uint64_t host = 0;         // its offset there
    bool planned = false;
  };
  using Pieces = std::vector<Piece*>;
  struct Gap {  // of an area, where nothing is out
    HostArea* area;
    uint64_t begin, end;
  };

  void add_place(Piece* piece, Vgpu& window, uint64_t address);
  Vgpu* reader_of(const std::vector<CUmemAccessDesc>& access);
  void plan(uint32_t vgpu, uint64_t bytes);
  Pieces chosen(bool planned);
  std::vector<HostArea::Run> used(const HostArea& area) const;
  std::vector<Gap> gaps() const;
  uint64_t lay_out(const Pieces& going);
  uint64_t held() const;
  CUresult copy(const Pieces& pieces, bool out, const Piece** failed);
  CUresult copy_run(const Piece& first, uint64_t bytes, bool out);
  CUresult create(Piece* piece);
  Missing missing_for(const Piece& failed, const Pieces& coming);
  CUresult release(const Pieces& pieces);
  CUresult give_access(const Piece& piece);
  void know_again(const Piece& piece);

  Session& session_;
  std::vector<Piece> pieces_;
  std::vector<uint64_t> movable_, staying_, exported_;
  std::vector<std::unique_ptr<HostArea>> areas_;  // the newest last
  std::set<const HostArea*> came_back_from_;
  std::string steps_;
};

}  // namespace sluice::worker
