// SPDX-License-Identifier: Apache-2.0
#include "softgpu/memory/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "softgpu/runtime/log.h"

namespace sluice::softgpu {
namespace {

constexpr size_t kWordBytes = sizeof(uint64_t) * SharedFile::kProcesses * SharedFile::kDevices;
constexpr size_t kBytes = kWordBytes + sizeof(SharedFile::Process) * SharedFile::kProcesses;
static_assert(sizeof(SharedFile::Process) == 128);

flock range(short type, off_t at) { return {type, SEEK_SET, at, 1, 0}; }

[[noreturn]] void give_up(const char* path, const char* what) {
  log(0, "SLUICE_SOFTGPU_SHARED_FILE=%s: %s: %s", path, what, std::strerror(errno));
  std::abort();
}

}  // namespace

SharedFile::SharedFile(const char* path) {
  fd_ = open(path, O_RDWR | O_CLOEXEC);
  struct stat about {};
  if (fd_ < 0 || fstat(fd_, &about) != 0) give_up(path, "it cannot be opened");
  if (about.st_size < static_cast<off_t>(kBytes) && ftruncate(fd_, kBytes) != 0)
    give_up(path, "it cannot be made as large as it has to be");
  void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) give_up(path, "it cannot be mapped");
  words_ = static_cast<std::atomic<uint64_t>*>(at);
  processes_ = reinterpret_cast<Process*>(static_cast<char*>(at) + kWordBytes);
  for (int i = 0; i < kProcesses && own_ < 0; ++i) {
    flock lock = range(F_WRLCK, i);
    if (fcntl(fd_, F_OFD_SETLK, &lock) == 0) own_ = i;
  }
  if (own_ < 0) give_up(path, "more processes have it than it has words for");
  for (int device = 0; device < kDevices; ++device) word(own_, device) = 0;
  Process& mine = process(own_);
  mine.state = 0;
  mine.answered = mine.order.load();
  mine.pid = static_cast<uint32_t>(getpid());
}

SharedFile* SharedFile::get() {
  static SharedFile* const one = []() -> SharedFile* {
    const char* path = std::getenv("SLUICE_SOFTGPU_SHARED_FILE");
    return path && *path ? new SharedFile(path) : nullptr;
  }();
  return one;
}

bool SharedFile::is_taken(int index) const {
  flock lock = range(F_WRLCK, index);
  return index == own_ || fcntl(fd_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

SharedFile::Lock::Lock(SharedFile& file, int byte, std::mutex& mutex)
    : file_(file), byte_(byte), lock_(mutex) {
  flock one = range(F_WRLCK, byte_);
  while (fcntl(file_.fd_, F_OFD_SETLKW, &one) != 0 && errno == EINTR) {
  }
}

SharedFile::Lock::~Lock() {
  flock one = range(F_UNLCK, byte_);
  fcntl(file_.fd_, F_OFD_SETLK, &one);
}

}  // namespace sluice::softgpu
