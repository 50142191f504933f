// SPDX-License-Identifier: Apache-2.0
#include "worker/grant_ledger.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace sluice::worker {

namespace {

// One byte of the file for each vGPU's words of one kind. A record lock of the old kind is the
// process's own, whoever opened the file, and goes when the process does.
class PageLock {
 public:
  PageLock(int fd, off_t at) : fd_(fd), at_(at) { set(F_WRLCK); }
  ~PageLock() { set(F_UNLCK); }

 private:
  void set(short type) const {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = at_;
    lock.l_len = 1;
    while (fcntl(fd_, F_SETLKW, &lock) != 0 && errno == EINTR) {
    }
  }
  const int fd_;
  const off_t at_;
};

}  // namespace

std::unique_ptr<GrantLedger> GrantLedger::open(int fd, uint32_t slot, std::string* error) {
  struct stat st {};
  void* at = MAP_FAILED;
  if (slot < kSlots && fstat(fd, &st) == 0 && static_cast<size_t>(st.st_size) == kBytes)
    at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  uint64_t magic = 0;
  if (at != MAP_FAILED) std::memcpy(&magic, at, sizeof magic);
  if (magic == kMagic) {
    auto* words = reinterpret_cast<uint64_t*>(static_cast<std::byte*>(at) + kHeaderBytes);
    return std::unique_ptr<GrantLedger>(new GrantLedger(fd, slot, words));
  }
  if (at != MAP_FAILED) munmap(at, kBytes);
  ::close(fd);
  *error = "what came as the grant's ledger is none of this release";
  return nullptr;
}

GrantLedger::~GrantLedger() {
  munmap(reinterpret_cast<std::byte*>(words_) - kHeaderBytes, kBytes);
  ::close(fd_);
}

uint64_t* GrantLedger::word(Kind kind, uint32_t vgpu, uint32_t slot) const {
  return words_ + (size_t{static_cast<uint32_t>(kind)} * kVgpus + vgpu) * kSlots + slot;
}

uint64_t GrantLedger::used(Kind kind, uint32_t vgpu) const {
  uint64_t sum = 0;
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    const uint64_t one = std::atomic_ref(*word(kind, vgpu, slot)).load(std::memory_order_relaxed);
    if (__builtin_add_overflow(sum, one, &sum)) return ~uint64_t{0};
  }
  return sum;
}

bool GrantLedger::take(Kind kind, uint32_t vgpu, uint64_t bytes, uint64_t limit) {
  std::lock_guard lock(mutex_);
  const PageLock page(fd_, static_cast<off_t>(static_cast<uint32_t>(kind) * kVgpus + vgpu));
  const uint64_t in_use = used(kind, vgpu);
  if (in_use > limit || bytes > limit - in_use) return false;
  std::atomic_ref(*word(kind, vgpu, slot_)).fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

// Nobody else's sum can become too large by it, so it needs no lock.
void GrantLedger::give(Kind kind, uint32_t vgpu, uint64_t bytes) {
  std::atomic_ref(*word(kind, vgpu, slot_)).fetch_sub(bytes, std::memory_order_relaxed);
}

}  // namespace sluice::worker
