// SPDX-License-Identifier: Apache-2.0
#include "worker/host_area.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "wire/frame.h"
#include "worker/memory.h"

namespace sluice::worker {

namespace {

// Pinned memory is registered in pieces, as one piece of all of it may find no room.
constexpr uint64_t kChunk = 1ull << 30;
constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// As far as it can be seen: a descriptor of the driver's says nothing.
bool is_whole(const HostArea::Piece& piece) {
  struct stat about {};
  if (piece.bytes == 0 || piece.bytes % kGranularity != 0) return false;
  return piece.of_driver ||
         (fstat(piece.memory, &about) == 0 && static_cast<uint64_t>(about.st_size) >= piece.bytes);
}

uintptr_t first_whole(void* place) {
  return wire::round_up(reinterpret_cast<uintptr_t>(place), kGranularity);
}

uint64_t total(const std::vector<HostArea::Piece>& pieces, bool of_driver) {
  uint64_t bytes = 0;
  for (const HostArea::Piece& piece : pieces)
    if (piece.of_driver == of_driver) bytes += piece.bytes;
  return bytes;
}

}  // namespace

HostArea::HostArea(const Driver& driver, const std::vector<int>& devices) : driver_(driver) {
  for (const int device : devices) {
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    access_.push_back(access);
  }
}

std::unique_ptr<HostArea> HostArea::take(const Driver& driver, const std::vector<Piece>& pieces,
                                         uint64_t bytes, const std::vector<int>& devices,
                                         Steps* steps, std::string* error) {
  std::unique_ptr<HostArea> area(new HostArea(driver, devices));
  bool good =
      total(pieces, false) + total(pieces, true) >= bytes && std::ranges::all_of(pieces, is_whole);
  if (!good) *error = "the host memory for it is smaller than what is to move, or no whole slabs";
  std::vector<Piece> taken;
  for (uint64_t have = 0; good && have < bytes; have += taken.back().bytes)
    taken.push_back(pieces[taken.size()]);
  good = good && area->map(taken, error);
  // What is mapped needs none any more, and what the driver is to open has one in its chunk.
  for (size_t i = 0; i < pieces.size(); ++i)
    if (!good || i >= taken.size() || !pieces[i].of_driver) ::close(pieces[i].memory);
  if (!good) return nullptr;
  steps->done("host memory mapped");
  return area;
}

bool HostArea::map(const std::vector<Piece>& pieces, std::string* error) {
  if (!map_shared(pieces, error) || !reserve(pieces, error)) return false;
  uint64_t shared = first_whole(shared_), drivers = reserved_;
  uint64_t at = 0;
  for (const Piece& piece : pieces) {
    uint64_t& address = piece.of_driver ? drivers : shared;
    for (const uint64_t end = at + piece.bytes; at < end; at = chunks_.back().end) {
      const uint64_t bytes = piece.of_driver ? piece.bytes : std::min(kChunk, end - at);
      chunks_.push_back({at, at + bytes, reinterpret_cast<std::byte*>(address),
                         piece.of_driver ? piece.memory : -1});
      address += bytes;
    }
  }
  return true;
}

// In a row at addresses of their own, which are those of huge pages.
bool HostArea::map_shared(const std::vector<Piece>& pieces, std::string* error) {
  shared_bytes_ = total(pieces, false);
  if (shared_bytes_ == 0) return true;
  shared_bytes_ += kGranularity;
  void* const place = mmap(nullptr, shared_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool good = place != MAP_FAILED;
  if (good) {
    shared_ = place;
    uintptr_t at = first_whole(place);
    for (const Piece& piece : pieces) {
      if (piece.of_driver) continue;
      good = good && mmap(reinterpret_cast<void*>(at), piece.bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_FIXED, piece.memory, 0) != MAP_FAILED;
      at += piece.bytes;
    }
  }
  if (!good) *error = std::string("host memory for it cannot be mapped: ") + std::strerror(errno);
  return good;
}

bool HostArea::reserve(const std::vector<Piece>& pieces, std::string* error) {
  reserved_bytes_ = total(pieces, true);
  if (reserved_bytes_ == 0) return true;
  const CUresult e = driver_.cuMemAddressReserve(&reserved_, reserved_bytes_, 0, 0, 0);
  if (e == CUDA_SUCCESS) return true;
  reserved_ = 0;
  *error = "host memory for it has no addresses: " + driver_.error_text(e);
  return false;
}

CUresult HostArea::open(Chunk* chunk) {
  const auto address = reinterpret_cast<CUdeviceptr>(chunk->address);
  const uint64_t bytes = chunk->end - chunk->begin;
  // The driver takes the descriptor for a pointer.
  void* const descriptor = reinterpret_cast<void*>(static_cast<uintptr_t>(chunk->memory));
  CUresult e = driver_.cuMemImportFromShareableHandle(&chunk->handle, descriptor, kDescriptor);
  if (e != CUDA_SUCCESS) return chunk->handle = 0, e;
  e = driver_.cuMemMap(address, bytes, 0, chunk->handle, 0);
  if (e == CUDA_SUCCESS) {
    e = driver_.cuMemSetAccess(address, bytes, access_.data(), access_.size());
    if (e != CUDA_SUCCESS) driver_.cuMemUnmap(address, bytes);
  }
  if (e != CUDA_SUCCESS) driver_.cuMemRelease(std::exchange(chunk->handle, 0));
  return e;
}

CUresult HostArea::enlist(uint64_t offset) {
  Chunk& chunk = chunks_[static_cast<size_t>(chunk_of(offset) - chunks_.cbegin())];
  if (chunk.is_tried) return CUDA_SUCCESS;
  if (chunk.memory >= 0) {
    if (const CUresult e = open(&chunk); e != CUDA_SUCCESS) return e;
    chunk.is_known = true;
  } else {  // without it copies are slower, and nothing else
    chunk.is_known = driver_.cuMemHostRegister_v2(chunk.address, chunk.end - chunk.begin,
                                                  CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
  }
  chunk.is_tried = true;
  return CUDA_SUCCESS;
}

void HostArea::delist() {
  for (Chunk& chunk : chunks_) delist(&chunk);
}

void HostArea::delist(Chunk* chunk) {
  chunk->is_tried = false;
  if (!std::exchange(chunk->is_known, false)) return;
  if (chunk->memory < 0) {
    call(driver_.cuMemHostUnregister, static_cast<void*>(chunk->address));
    return;
  }
  driver_.cuMemUnmap(reinterpret_cast<CUdeviceptr>(chunk->address), chunk->end - chunk->begin);
  driver_.cuMemRelease(std::exchange(chunk->handle, 0));
}

// Its addresses stay the area's, so that nobody else's memory comes to lie there.
void HostArea::give_up(Chunk* chunk) {
  delist(chunk);
  chunk->is_gone = true;
  if (chunk->memory >= 0) {
    ::close(std::exchange(chunk->memory, -1));
    return;
  }
  const uint64_t bytes = chunk->end - chunk->begin;
  madvise(chunk->address, bytes, MADV_REMOVE);  // it may be a part of its file
  mmap(chunk->address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

uint64_t HostArea::give_up(const std::vector<Run>& used, uint64_t bytes) {
  uint64_t given = 0;
  auto run = used.rbegin();
  for (auto chunk = chunks_.rbegin(); chunk != chunks_.rend() && given < bytes; ++chunk) {
    while (run != used.rend() && run->begin >= chunk->end) ++run;
    const bool is_used = run != used.rend() && run->end > chunk->begin;
    if (is_used || chunk->is_gone) continue;
    give_up(&*chunk);
    given += chunk->end - chunk->begin;
  }
  return given;
}

std::vector<HostArea::Run> HostArea::runs() const {
  std::vector<Run> found;
  for (const Chunk& chunk : chunks_) {
    if (chunk.is_gone) continue;
    if (!found.empty() && found.back().end == chunk.begin)
      found.back().end = chunk.end;
    else
      found.push_back({chunk.begin, chunk.end});
  }
  return found;
}

uint64_t HostArea::bytes() const {
  uint64_t all = 0;
  for (const Run& run : runs()) all += run.end - run.begin;
  return all;
}

uint64_t HostArea::unknown_bytes() const {
  uint64_t all = 0;
  for (const Chunk& chunk : chunks_)
    if (chunk.is_tried && !chunk.is_known && !chunk.is_gone) all += chunk.end - chunk.begin;
  return all;
}

HostArea::~HostArea() {
  delist();
  for (const Chunk& chunk : chunks_)
    if (chunk.memory >= 0) ::close(chunk.memory);
  if (shared_) munmap(shared_, shared_bytes_);
  if (reserved_) driver_.cuMemAddressFree(reserved_, reserved_bytes_);
}

std::vector<HostArea::Chunk>::const_iterator HostArea::chunk_of(uint64_t offset) const {
  const auto begins_behind = [](uint64_t at, const Chunk& chunk) { return at < chunk.begin; };
  return std::prev(std::upper_bound(chunks_.begin(), chunks_.end(), offset, begins_behind));
}

std::byte* HostArea::at(uint64_t offset) const {
  const auto chunk = chunk_of(offset);
  return chunk->address + (offset - chunk->begin);
}

uint64_t HostArea::in_one(uint64_t offset, uint64_t end) const {
  return std::min(end, chunk_of(offset)->end) - offset;
}

}  // namespace sluice::worker
