// SPDX-License-Identifier: Apache-2.0
#include "softgpu/memory/shared_use.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "softgpu/runtime/log.h"

namespace sluice::softgpu {
namespace {

constexpr int kProcesses = 128, kDevices = 64;
constexpr size_t kBytes = sizeof(uint64_t) * kProcesses * kDevices;

// One byte of the file is locked for each process, and one more while words are read and changed.
struct File {
  int fd = -1;
  int own = -1;
  std::atomic<uint64_t>* words = nullptr;
  std::mutex mutex;  // the lock on the file holds between processes only

  std::atomic<uint64_t>& word(int process, int device) const {
    return words[process * kDevices + device];
  }
};

flock range(short type, off_t at) { return {type, SEEK_SET, at, 1, 0}; }

[[noreturn]] void give_up(const char* path, const char* what) {
  log(0, "SLUICE_SOFTGPU_SHARED_FILE=%s: %s: %s", path, what, std::strerror(errno));
  std::abort();
}

File* open_file() {
  const char* path = std::getenv("SLUICE_SOFTGPU_SHARED_FILE");
  if (!path || !*path) return nullptr;
  static File file;
  file.fd = open(path, O_RDWR | O_CLOEXEC);
  struct stat about {};
  if (file.fd < 0 || fstat(file.fd, &about) != 0) give_up(path, "it cannot be opened");
  if (about.st_size < static_cast<off_t>(kBytes) && ftruncate(file.fd, kBytes) != 0)
    give_up(path, "it cannot be made as large as it has to be");
  void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
  if (at == MAP_FAILED) give_up(path, "it cannot be mapped");
  file.words = static_cast<std::atomic<uint64_t>*>(at);
  for (int i = 0; i < kProcesses && file.own < 0; ++i) {
    flock lock = range(F_WRLCK, i);
    if (fcntl(file.fd, F_OFD_SETLK, &lock) == 0) file.own = i;
  }
  if (file.own < 0) give_up(path, "more processes have it than it has words for");
  for (int device = 0; device < kDevices; ++device) file.word(file.own, device) = 0;
  return &file;
}

File* file() {
  static File* const one = open_file();
  return one;
}

class Locked {
 public:
  explicit Locked(File& file) : file_(file), lock_(file.mutex) {
    flock whole = range(F_WRLCK, kProcesses);
    while (fcntl(file_.fd, F_OFD_SETLKW, &whole) != 0 && errno == EINTR) {
    }
  }
  ~Locked() {
    flock whole = range(F_UNLCK, kProcesses);
    fcntl(file_.fd, F_OFD_SETLK, &whole);
  }
  Locked(const Locked&) = delete;

  // Of one that has ended nothing counts.
  uint64_t used(int device) const {
    uint64_t sum = 0;
    for (int i = 0; i < kProcesses; ++i) {
      std::atomic<uint64_t>& word = file_.word(i, device);
      if (word == 0) continue;
      flock lock = range(F_WRLCK, i);
      const bool ended =
          i != file_.own && fcntl(file_.fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
      if (ended) word = 0;
      sum += word;
    }
    return sum;
  }

 private:
  File& file_;
  std::lock_guard<std::mutex> lock_;
};

}  // namespace

SharedUse* SharedUse::of(int physical) {
  if (!file() || physical < 0 || physical >= kDevices) return nullptr;
  static std::array<std::unique_ptr<SharedUse>, kDevices> all;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  auto& one = all[static_cast<size_t>(physical)];
  if (!one) one.reset(new SharedUse(physical));
  return one.get();
}

bool SharedUse::take(uint64_t bytes, uint64_t total) {
  File& f = *file();
  const Locked locked(f);
  const uint64_t used = locked.used(physical_);
  if (used > total || bytes > total - used) return false;
  f.word(f.own, physical_) += bytes;
  return true;
}

void SharedUse::give(uint64_t bytes) {
  File& f = *file();
  const Locked locked(f);
  f.word(f.own, physical_) -= bytes;
}

uint64_t SharedUse::used() { return Locked(*file()).used(physical_); }

}  // namespace sluice::softgpu
