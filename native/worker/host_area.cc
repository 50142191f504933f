// SPDX-License-Identifier: Apache-2.0
#include "worker/host_area.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "worker/memory.h"

namespace sluice::worker {

namespace {
// Pinned memory is registered in pieces, as one piece of all of it may find no room.
constexpr uint64_t kChunk = 1ull << 30;
}  // namespace

std::unique_ptr<HostArea> HostArea::take(const Driver& driver, const std::vector<Piece>& pieces,
                                         uint64_t bytes, Steps* steps, std::string* error) {
  uint64_t given = 0;
  bool good = true;
  for (const Piece& piece : pieces) {
    struct stat about {};
    good &= piece.bytes % kGranularity == 0 && fstat(piece.memory, &about) == 0 &&
            static_cast<uint64_t>(about.st_size) >= piece.bytes;
    given += piece.bytes;
  }
  std::unique_ptr<HostArea> area(new HostArea(driver));
  area->bytes_ = given + kGranularity;
  if (!good || given < bytes)
    *error = "the host memory for it is smaller than what is to move, or no whole slabs";
  else
    area->map(pieces, error);
  for (const Piece& piece : pieces) ::close(piece.memory);
  if (!error->empty()) return nullptr;
  steps->done("host memory mapped");
  area->divide(pieces);
  return area;
}

// In a row at addresses of their own, which are those of huge pages.
void HostArea::map(const std::vector<Piece>& pieces, std::string* error) {
  void* const place = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool good = place != MAP_FAILED;
  if (good) {
    reserved_ = static_cast<std::byte*>(place);
    const auto reserved = reinterpret_cast<uintptr_t>(place);
    begin_ = reinterpret_cast<std::byte*>((reserved + kGranularity - 1) & ~(kGranularity - 1));
    std::byte* at = begin_;
    for (const Piece& piece : pieces) {
      good = good && mmap(at, piece.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                          piece.memory, 0) != MAP_FAILED;
      at += piece.bytes;
    }
  }
  if (!good) *error = std::string("host memory for it cannot be mapped: ") + std::strerror(errno);
}

void HostArea::divide(const std::vector<Piece>& pieces) {
  uint64_t begin = 0;
  for (const Piece& piece : pieces)
    for (const uint64_t end = begin + piece.bytes; begin < end; begin = chunks_.back())
      chunks_.push_back(begin + std::min(kChunk, end - begin));
}

// Without it copies are slower, and nothing else.
void HostArea::enlist(uint64_t offset) {
  for (; enlisted_ < chunks_.size(); ++enlisted_) {
    const uint64_t begin = enlisted_ ? chunks_[enlisted_ - 1] : 0;
    if (begin > offset) return;
    if (driver_.cuMemHostRegister_v2(at(begin), chunks_[enlisted_] - begin,
                                     CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS)
      registered_.push_back(begin);
  }
}

void HostArea::delist() {
  for (const uint64_t begin : registered_)
    call(driver_.cuMemHostUnregister, static_cast<void*>(at(begin)));
  registered_.clear();
  enlisted_ = 0;
}

HostArea::~HostArea() {
  delist();
  if (reserved_) munmap(reserved_, bytes_);
}

uint64_t HostArea::in_one(uint64_t offset, uint64_t end) const {
  const auto chunk = std::upper_bound(chunks_.begin(), chunks_.end(), offset);
  return std::min(end, chunk == chunks_.end() ? end : *chunk) - offset;
}

}  // namespace sluice::worker
