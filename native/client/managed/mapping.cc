// SPDX-License-Identifier: Apache-2.0
#include "client/managed/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace sluice::client {

namespace {

std::string reason() { return std::strerror(errno); }

}  // namespace

std::unique_ptr<ManagedMapping> ManagedMapping::make(uint64_t start, uint64_t bytes, Where where,
                                                     std::string* error) {
  std::unique_ptr<ManagedMapping> made(new ManagedMapping(start, bytes, where));
  const int fd = memfd_create("sluice-managed", MFD_CLOEXEC);
  if (fd < 0) {
    *error = "no file in memory can be made: " + reason();
    return nullptr;
  }
  struct Close {
    int fd;
    ~Close() { close(fd); }
  } close_it{fd};
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    *error = "a file in memory cannot have " + std::to_string(bytes) + " bytes: " + reason();
    return nullptr;
  }
  void* second = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (second == MAP_FAILED) {
    *error = std::to_string(bytes) + " bytes cannot be mapped: " + reason();
    return nullptr;
  }
  made->second_ = static_cast<std::byte*>(second);
  void* at = reinterpret_cast<void*>(start);
  const int fixed = where == Where::kWindow ? MAP_FIXED : MAP_FIXED_NOREPLACE;
  void* got = mmap(at, bytes, PROT_NONE, MAP_SHARED | fixed, fd, 0);
  if (got != at) {
    // A kernel before 4.17 takes the address for a hint.
    if (got != MAP_FAILED) munmap(got, bytes), errno = EEXIST;
    *error = "the device's address cannot be had in this process: " + reason();
    return nullptr;
  }
  made->mapped_ = true;
  madvise(at, bytes, MADV_DONTFORK);
  madvise(second, bytes, MADV_DONTFORK);
  return made;
}

ManagedMapping::~ManagedMapping() {
  if (second_) munmap(second_, bytes_);
  if (!mapped_) return;
  void* at = reinterpret_cast<void*>(start_);
  if (where_ == Where::kFree) {
    munmap(at, bytes_);
    return;
  }
  // The window stays reserved.
  mmap(at, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  madvise(at, bytes_, MADV_DONTFORK);
}

bool ManagedMapping::protect(uint64_t at, uint64_t bytes, int protection) const {
  return mprotect(reinterpret_cast<void*>(at), bytes, protection) == 0;
}

void ManagedMapping::populate(uint64_t at, uint64_t bytes) const {
#ifndef MADV_POPULATE_READ
  constexpr int MADV_POPULATE_READ = 22;
#endif
  // Kernels before 5.14 do not know it, and map by faults.
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE)), from = at / page * page;
  madvise(reinterpret_cast<void*>(from), at + bytes - from, MADV_POPULATE_READ);
}

void ManagedMapping::clear(uint64_t at, uint64_t bytes) const {
  madvise(second(at), bytes, MADV_REMOVE);
}

}  // namespace sluice::client
