// SPDX-License-Identifier: Apache-2.0
#include "worker/code_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "process/log.h"

namespace sluice::worker {

namespace {

bool read_all(int file, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t n = read(file, to.data(), to.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to = to.subspan(static_cast<size_t>(n));
  }
  return true;
}

bool write_all(int file, std::span<const std::byte> from) {
  while (!from.empty()) {
    const ssize_t n = write(file, from.data(), from.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    from = from.subspan(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

CodeCache::~CodeCache() {
  for (int folder : folders_)
    if (folder >= 0) close(folder);
}

bool CodeCache::find(const wire::ContentHash& hash, uint64_t bytes, std::vector<std::byte>* image) {
  const std::string name = wire::hex(hash);
  for (int folder : folders_) {
    if (folder < 0) continue;
    const int file = openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) continue;
    struct stat st {};
    bool right =
        fstat(file, &st) == 0 && S_ISREG(st.st_mode) && static_cast<uint64_t>(st.st_size) == bytes;
    if (right) {
      image->reserve(bytes + 1);
      image->resize(bytes);
      right = read_all(file, *image) && wire::content_hash(*image) == hash;
    }
    close(file);
    const bool own = folder == folders_[0];
    if (right) {
      if (own) tell_("code_used", name, -1);
      return true;
    }
    process::log_error("the code image " + name + " that the node kept is damaged and is not used" +
                       (own ? "" : " (it is in the shared folder)"));
    if (own) tell_("code_damaged", name, -1);
  }
  image->clear();
  return false;
}

void CodeCache::offer(std::span<const std::byte> image) {
  if (folders_[0] < 0) return;
  const int file = memfd_create("sluice-code", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return;
  // The server reads it later and must find what it hashes.
  if (write_all(file, image) &&
      fcntl(file, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0)
    tell_("code", "", file);
  close(file);
}

}  // namespace sluice::worker
