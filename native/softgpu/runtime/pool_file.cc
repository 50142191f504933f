// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/pool_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "softgpu/runtime/device.h"

namespace sluice::softgpu {
namespace {

struct Badge {
  static constexpr uint64_t kMagic = 0x316c6f6f70676673;  // "sfgpool1"
  uint64_t magic = kMagic;
  unsigned char uuid[16] = {};
};

struct Mapping {
  std::shared_ptr<PoolFile> file;
  uint64_t offset, bytes;
};

// What is mapped of any such file, by address.
std::mutex g_mutex;
std::map<uintptr_t, Mapping>& mappings() {
  static auto* all = new std::map<uintptr_t, Mapping>;
  return *all;
}

uint64_t in_slabs(uint64_t size) { return (size + kSlab - 1) / kSlab * kSlab; }

}  // namespace

std::shared_ptr<PoolFile> PoolFile::create(Device& device) {
  int fd = memfd_create("sluice-softgpu-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return nullptr;
  Badge badge;
  std::memcpy(badge.uuid, device.uuid.data(), sizeof badge.uuid);
  uint64_t bytes = in_slabs(device.memory.total()) + kSlab;
  struct stat status;
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      pwrite(fd, &badge, sizeof badge, 0) != sizeof badge ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
      fstat(fd, &status) != 0) {
    close(fd);
    return nullptr;
  }
  return std::make_shared<PoolFile>(fd, device, bytes, status.st_ino, false);
}

std::shared_ptr<PoolFile> PoolFile::import(int descriptor) {
  struct stat status;
  Badge badge;
  // Sealed, so that nobody can take away what is mapped.
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) ||
      pread(descriptor, &badge, sizeof badge, 0) != sizeof badge || badge.magic != Badge::kMagic ||
      (fcntl(descriptor, F_GET_SEALS) & F_SEAL_SHRINK) == 0) {
    return nullptr;
  }
  for (const auto& device : devices()) {
    if (std::memcmp(device->uuid.data(), badge.uuid, sizeof badge.uuid) != 0) continue;
    int fd = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return nullptr;
    return std::make_shared<PoolFile>(fd, *device, static_cast<uint64_t>(status.st_size),
                                      status.st_ino, true);
  }
  return nullptr;
}

PoolFile::~PoolFile() { close(fd_); }

int PoolFile::descriptor() const { return fcntl(fd_, F_DUPFD_CLOEXEC, 0); }

uintptr_t PoolFile::map_at(uint64_t offset, uint64_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, static_cast<off_t>(offset));
  return memory == MAP_FAILED ? 0 : reinterpret_cast<uintptr_t>(memory);
}

uintptr_t PoolFile::allocate(const std::shared_ptr<PoolFile>& file, uint64_t size) {
  if (size > file->bytes_ || !file->device_.memory.charge(in_slabs(size))) return 0;
  uint64_t bytes = in_slabs(size);
  std::lock_guard lock(file->mutex_);
  uint64_t offset = kSlab;  // the first gap that is large enough
  for (const auto& [at, taken] : file->taken_) {
    if (at - offset >= bytes) break;
    offset = at + taken;
  }
  uintptr_t address = file->bytes_ - offset >= bytes ? file->map_at(offset, bytes) : 0;
  if (address == 0) {
    file->device_.memory.refund(bytes);
    return 0;
  }
  file->taken_[offset] = bytes;
  std::lock_guard all(g_mutex);
  mappings()[address] = {file, offset, bytes};
  return address;
}

uintptr_t PoolFile::map(const std::shared_ptr<PoolFile>& file, const Ticket& ticket) {
  if (ticket.magic != Ticket::kMagic || ticket.inode != file->inode_ || ticket.size == 0 ||
      ticket.offset < kSlab || ticket.offset % kSlab != 0 || ticket.offset >= file->bytes_ ||
      ticket.size > file->bytes_ - ticket.offset) {
    return 0;
  }
  uint64_t bytes = in_slabs(ticket.size);
  uintptr_t address = file->map_at(ticket.offset, bytes);
  if (address == 0) return 0;
  std::lock_guard all(g_mutex);
  mappings()[address] = {file, ticket.offset, bytes};
  return address;
}

bool PoolFile::ticket(uintptr_t address, uint64_t size, Ticket* ticket) {
  std::lock_guard all(g_mutex);
  auto found = mappings().find(address);
  if (found == mappings().end() || found->second.file.get() != this || foreign_) return false;
  ticket->inode = inode_;
  ticket->offset = found->second.offset;
  ticket->size = size;
  return true;
}

bool PoolFile::release(uintptr_t address) {
  Mapping gone;
  {
    std::lock_guard all(g_mutex);
    auto found = mappings().find(address);
    if (found == mappings().end()) return false;
    gone = std::move(found->second);
    mappings().erase(found);
  }
  munmap(reinterpret_cast<void*>(address), gone.bytes);
  PoolFile& file = *gone.file;
  if (file.foreign_) return true;
  fallocate(file.fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(gone.offset),
            static_cast<off_t>(gone.bytes));
  std::lock_guard lock(file.mutex_);
  file.taken_.erase(gone.offset);
  file.device_.memory.refund(gone.bytes);
  return true;
}

}  // namespace sluice::softgpu
