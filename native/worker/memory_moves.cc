// SPDX-License-Identifier: Apache-2.0
#include "worker/memory_moves.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "process/log.h"
#include "worker/memory.h"

namespace sluice::worker {

namespace {
// Pinned memory is registered in pieces, as one piece of all of it may find no room.
constexpr uint64_t kChunk = 1ull << 30;
}  // namespace

// With the access that each GPU of the session has to it now.
void MemoryMoves::add_place(Piece* piece, Vgpu& window, uint64_t address) {
  Place place{&window, address, {}};
  for (auto& v : session_.vgpus) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = v->gpu->ordinal;
    const auto same = [&](const CUmemAccessDesc& d) { return d.location.id == access.location.id; };
    if (std::ranges::any_of(place.access, same)) continue;
    unsigned long long flags = 0;
    if (call(session_.driver.cuMemGetAccess, &flags,
             static_cast<const CUmemLocation*>(&access.location), address) != CUDA_SUCCESS)
      continue;  // none was ever given
    access.flags = static_cast<CUmemAccess_flags>(flags);
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) place.access.push_back(access);
  }
  piece->places.push_back(std::move(place));
}

// A vGPU whose GPU reaches it by these; nullptr: none does.
Vgpu* MemoryMoves::reader_of(const std::vector<CUmemAccessDesc>& access) {
  for (auto& v : session_.vgpus)
    if (!access.empty() && v->gpu->ordinal == access[0].location.id) return v.get();
  return nullptr;
}

void MemoryMoves::look() {
  pieces_.clear();
  movable_ = 0;
  staying_.assign(session_.vgpus.size(), 0);
  std::map<uint64_t, size_t> known;  // allocations, by id
  for (auto& v : session_.vgpus) {
    session_.use(v->index);
    std::lock_guard lock(v->mutex);
    for (const auto& [address, mapping] : v->mappings) {
      AllocationObject o;
      const uint64_t id = mapping.allocation;
      if (id && (!session_.objects.allocations.get(id, &o) || o.shared)) continue;
      Vgpu& owner = id ? *session_.vgpus[o.device] : *v;
      if (mapping.shared || owner.exported.contains(id ? id : address)) continue;
      const auto before = id ? known.find(id) : known.end();
      if (before != known.end()) {
        add_place(&pieces_[before->second], *v, address);
        continue;
      }
      Piece piece{&owner,         nullptr,  id,
                  mapping.bytes,  movable_, physical_memory_on(*owner.gpu),
                  mapping.handle, {}};
      if (id)
        piece.prop.allocFlags.compressionType =
            static_cast<unsigned char>(compression_of(session_, mapping.handle));
      add_place(&piece, *v, address);
      piece.reader = reader_of(piece.places[0].access);
      if (!piece.reader) continue;
      if (id) known[id] = pieces_.size();
      movable_ += piece.bytes;
      pieces_.push_back(std::move(piece));
    }
  }
  for (auto& v : session_.vgpus) {
    std::lock_guard lock(v->mutex);
    staying_[v->index] = v->memory.taken(MemoryUse::kClient) +
                         v->memory.taken(MemoryUse::kLibrary) + v->memory.taken(MemoryUse::kCode);
  }
  for (const Piece& piece : pieces_)
    staying_[piece.owner->index] -= std::min(piece.bytes, staying_[piece.owner->index]);
}

bool MemoryMoves::take_host(int memory, uint64_t bytes, std::string* error) {
  struct stat about {};
  const bool enough = fstat(memory, &about) == 0 && bytes >= movable_ &&
                      static_cast<uint64_t>(about.st_size) >= bytes;
  void* at = MAP_FAILED;
  if (enough) at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  const int why = errno;
  ::close(memory);
  if (at == MAP_FAILED) {
    *error = enough ? std::string("host memory for it cannot be mapped: ") + std::strerror(why)
                    : "the host memory for it is smaller than what is to move";
    return false;
  }
  host_ = static_cast<std::byte*>(at);
  host_bytes_ = bytes;
  // Without it copies are slower, and nothing else.
  for (uint64_t begin = 0; begin < bytes; begin += kChunk) {
    const uint64_t n = std::min(kChunk, bytes - begin);
    if (session_.driver.cuMemHostRegister_v2(host_ + begin, n, CU_MEMHOSTREGISTER_PORTABLE) !=
        CUDA_SUCCESS)
      break;
    registered_.push_back(begin);
  }
  return true;
}

void MemoryMoves::forget_host() {
  if (!host_) return;
  for (const uint64_t begin : registered_)
    call(session_.driver.cuMemHostUnregister, static_cast<void*>(host_ + begin));
  registered_.clear();
  // The last that holds these pages: the kernel gives them to others empty.
  munmap(host_, host_bytes_);
  host_ = nullptr;
}

// Pieces that lie side by side, here and there, go in one copy: one of 2 MiB takes twice its time.
CUresult MemoryMoves::copy(bool out) {
  CUresult first = CUDA_SUCCESS;
  for (size_t i = 0; i < pieces_.size();) {
    const Piece& piece = pieces_[i];
    const CUdeviceptr device = piece.places[0].address;
    uint64_t bytes = 0;
    for (; i < pieces_.size() && pieces_[i].reader == piece.reader &&
           pieces_[i].places[0].address == device + bytes && pieces_[i].host == piece.host + bytes;
         ++i)
      bytes += pieces_[i].bytes;
    session_.use(piece.reader->index);
    const CUstream stream = piece.reader->gpu->house;
    std::byte* const host = host_ + piece.host;
    const CUresult e = out ? session_.driver.cuMemcpyDtoHAsync_v2(host, device, bytes, stream)
                           : session_.driver.cuMemcpyHtoDAsync_v2(device, host, bytes, stream);
    if (first == CUDA_SUCCESS) first = e;
  }
  for (auto& v : session_.vgpus) {
    session_.use(v->index);
    const CUresult e = session_.driver.cuStreamSynchronize(v->gpu->house);
    if (first == CUDA_SUCCESS) first = e;
  }
  return first;
}

CUresult MemoryMoves::release(Piece& piece) {
  CUresult first = CUDA_SUCCESS;
  for (const Place& place : piece.places) {
    session_.use(place.window->index);
    const CUresult e = session_.driver.cuMemUnmap(place.address, piece.bytes);
    if (first == CUDA_SUCCESS) first = e;
  }
  const CUresult e = session_.driver.cuMemRelease(piece.handle);
  piece.handle = 0;
  return first == CUDA_SUCCESS ? e : first;
}

CUresult MemoryMoves::create(Piece* piece) {
  session_.use(piece->owner->index);
  CUresult e = session_.driver.cuMemCreate(&piece->handle, piece->bytes, &piece->prop, 0);
  if (e != CUDA_SUCCESS) return piece->handle = 0, e;
  size_t mapped = 0;
  for (const Place& place : piece->places) {
    session_.use(place.window->index);
    e = session_.driver.cuMemMap(place.address, piece->bytes, 0, piece->handle, 0);
    if (e != CUDA_SUCCESS) break;
    ++mapped;
  }
  if (e == CUDA_SUCCESS) {
    // To be written to, whatever its client may.
    CUmemAccessDesc writes = piece->places[0].access[0];
    writes.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    e = session_.driver.cuMemSetAccess(piece->places[0].address, piece->bytes, &writes, 1);
  }
  if (e == CUDA_SUCCESS) return e;
  for (size_t i = 0; i < mapped; ++i)
    session_.driver.cuMemUnmap(piece->places[i].address, piece->bytes);
  session_.driver.cuMemRelease(piece->handle);
  piece->handle = 0;
  return e;
}

CUresult MemoryMoves::give_access(const Piece& piece) {
  CUresult first = CUDA_SUCCESS;
  for (const Place& place : piece.places) {
    if (place.access.empty()) continue;
    session_.use(place.window->index);
    const CUresult e = session_.driver.cuMemSetAccess(place.address, piece.bytes,
                                                      place.access.data(), place.access.size());
    if (first == CUDA_SUCCESS) first = e;
  }
  return first;
}

// The session's records name the memory that is there now.
void MemoryMoves::know_again(const Piece& piece) {
  for (const Place& place : piece.places) {
    std::lock_guard lock(place.window->mutex);
    place.window->mappings.at(place.address).handle = piece.handle;
  }
  AllocationObject o;
  if (piece.allocation && session_.objects.allocations.get(piece.allocation, &o)) {
    o.handle = piece.handle;
    session_.objects.allocations.set(piece.allocation, o);
  }
}

bool MemoryMoves::out(int memory, uint64_t bytes, std::string* error, bool* broken) {
  *broken = false;
  if (!take_host(memory, bytes, error)) return false;
  if (const CUresult e = copy(true); e != CUDA_SUCCESS) {
    *error = "its memory cannot be copied to the host: " + session_.driver.error_text(e);
    *broken = is_sticky(e);
    forget_host();
    return false;
  }
  for (Piece& piece : pieces_) {
    const CUresult e = release(piece);
    if (e == CUDA_SUCCESS) continue;
    *error = "its memory cannot be taken off the GPU: " + session_.driver.error_text(e);
    *broken = true;
    return false;
  }
  return true;
}

bool MemoryMoves::back(std::string* error, bool* broken) {
  *broken = false;
  CUresult e = CUDA_SUCCESS;
  for (Piece& piece : pieces_)
    if ((e = create(&piece)) != CUDA_SUCCESS) break;
  if (e == CUDA_SUCCESS) e = copy(false);
  for (const Piece& piece : pieces_)
    if (e == CUDA_SUCCESS) e = give_access(piece);
  if (e != CUDA_SUCCESS) {
    *error = "its memory finds no place on the GPU: " + session_.driver.error_text(e);
    *broken = is_sticky(e);
    for (Piece& piece : pieces_)
      if (piece.handle) release(piece);
    return false;
  }
  for (const Piece& piece : pieces_) know_again(piece);
  forget_host();
  pieces_.clear();
  return true;
}

}  // namespace sluice::worker
