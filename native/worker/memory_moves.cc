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

// In a row at addresses of their own, which are those of huge pages. All descriptors are closed.
bool MemoryMoves::take_host(const std::vector<HostPiece>& pieces, std::string* error) {
  uint64_t bytes = 0;
  bool good = true;
  for (const HostPiece& piece : pieces) {
    struct stat about {};
    good &= piece.bytes % kGranularity == 0 && fstat(piece.memory, &about) == 0 &&
            static_cast<uint64_t>(about.st_size) >= piece.bytes;
    bytes += piece.bytes;
  }
  if (!good || bytes < movable_) {
    *error = "the host memory for it is smaller than what is to move, or no whole slabs";
    for (const HostPiece& piece : pieces) ::close(piece.memory);
    return false;
  }
  host_bytes_ = bytes + kGranularity;
  void* const place = mmap(nullptr, host_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  good = place != MAP_FAILED;
  const auto reserved = reinterpret_cast<uintptr_t>(place);
  auto* at = reinterpret_cast<std::byte*>((reserved + kGranularity - 1) & ~(kGranularity - 1));
  reserved_ = good ? static_cast<std::byte*>(place) : nullptr;
  host_ = good ? at : nullptr;
  for (const HostPiece& piece : pieces) {
    good = good && mmap(at, piece.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                        piece.memory, 0) != MAP_FAILED;
    if (!good && error->empty())
      *error = std::string("host memory for it cannot be mapped: ") + std::strerror(errno);
    ::close(piece.memory);
    at += piece.bytes;
  }
  if (!good) return forget_host(), false;
  register_host(pieces);
  return true;
}

// Without it copies are slower, and nothing else.
void MemoryMoves::register_host(const std::vector<HostPiece>& pieces) {
  session_.use(0);
  uint64_t begin = 0;
  for (const HostPiece& piece : pieces) {
    for (const uint64_t end = begin + piece.bytes; begin < end; begin = chunks_.back()) {
      const uint64_t n = std::min(kChunk, end - begin);
      if (session_.driver.cuMemHostRegister_v2(host_ + begin, n, CU_MEMHOSTREGISTER_PORTABLE) ==
          CUDA_SUCCESS)
        registered_.push_back(begin);
      chunks_.push_back(begin + n);
    }
  }
}

void MemoryMoves::forget_host() {
  if (!reserved_) return;
  session_.use(0);
  for (const uint64_t begin : registered_)
    call(session_.driver.cuMemHostUnregister, static_cast<void*>(host_ + begin));
  registered_.clear();
  chunks_.clear();
  // The last that holds these pages: the kernel gives them to others empty.
  munmap(reserved_, host_bytes_);
  reserved_ = host_ = nullptr;
}

// What lies side by side, here and there, in as few copies as chunks of host memory allow: the
// driver takes none that reaches over two registered ones.
CUresult MemoryMoves::copy_run(const Piece& first, uint64_t bytes, bool out) {
  session_.use(first.reader->index);
  const CUstream stream = first.reader->gpu->house;
  CUdeviceptr device = first.places[0].address;
  for (uint64_t at = first.host, end = at + bytes; at < end;) {
    const auto chunk = std::upper_bound(chunks_.begin(), chunks_.end(), at);
    const uint64_t n = std::min(end, chunk == chunks_.end() ? end : *chunk) - at;
    const CUresult e = out ? session_.driver.cuMemcpyDtoHAsync_v2(host_ + at, device, n, stream)
                           : session_.driver.cuMemcpyHtoDAsync_v2(device, host_ + at, n, stream);
    if (e != CUDA_SUCCESS) return e;
    at += n;
    device += n;
  }
  return CUDA_SUCCESS;
}

CUresult MemoryMoves::copy(bool out) {
  CUresult first = CUDA_SUCCESS;
  for (size_t i = 0; i < pieces_.size();) {
    const Piece& piece = pieces_[i];
    uint64_t bytes = 0;
    for (; i < pieces_.size() && pieces_[i].reader == piece.reader &&
           pieces_[i].places[0].address == piece.places[0].address + bytes &&
           pieces_[i].host == piece.host + bytes;
         ++i)
      bytes += pieces_[i].bytes;
    const CUresult e = copy_run(piece, bytes, out);
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

bool MemoryMoves::out(const std::vector<HostPiece>& host, std::string* error, bool* broken) {
  *broken = false;
  if (!take_host(host, error)) return false;
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
