// SPDX-License-Identifier: Apache-2.0
#include "doorbell/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sluice::doorbell {

using channel::SlotState;

namespace {
constexpr size_t kMostBells = 64;  // of one region, whose programs have one each
}

Region::~Region() {
  for (const Bell& bell : bells) close(bell.fd);
  if (header) munmap(header, channel::kPage);
}

int Region::open_file(std::string* error) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd >= 0 && fstat(fd, &file) == 0 && S_ISREG(file.st_mode)) return fd;
  *error = path + ": " + (fd < 0 ? std::strerror(errno) : "not a regular file");
  if (fd >= 0) close(fd);
  return -1;
}

bool Region::same_as(const Region& other) const {
  return file.st_dev == other.file.st_dev && file.st_ino == other.file.st_ino &&
         file.st_size == other.file.st_size && slot_count == other.slot_count;
}

bool Region::map(int fd, std::string* error) {
  const auto region_bytes = static_cast<size_t>(file.st_size);
  const size_t slot_bytes = channel::slot_bytes_of(region_bytes, slot_count);
  if (channel::slot_layout(slot_bytes).total == 0) {
    *error = path + ": " + std::to_string(region_bytes) + " bytes are too few for " +
             std::to_string(slot_count) + " slots of at least 4 MiB";
    return false;
  }
  channel::RegionHeader was{};
  std::string ignored;
  const bool valid = pread(fd, &was, sizeof was, 0) == static_cast<ssize_t>(sizeof was) &&
                     channel::check_region(was, region_bytes, &ignored) == slot_bytes &&
                     was.slot_count == slot_count;
  for (uint32_t i = 0; i < slot_count; ++i) {
    Slot s;
    if (!s.map.map(fd, slot_bytes, i, channel::kNoArena, error)) return false;
    if (!valid || s.map.header().magic != channel::kSlotMagic)
      channel::format_slot(s.map, i, SlotState::kFree);
    slots.push_back(std::move(s));
  }
  if (!valid && !channel::format_region(fd, region_bytes, slot_count, error)) return false;
  void* page = mmap(nullptr, channel::kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) {
    *error = path + ": " + std::strerror(errno);
    return false;
  }
  header = static_cast<channel::RegionHeader*>(page);
  return true;
}

void Region::mend_header() {
  const auto bytes = static_cast<size_t>(file.st_size);
  std::string damage;
  if (channel::check_region(*header, bytes, &damage) != channel::slot_bytes_of(bytes, slot_count) ||
      header->slot_count != slot_count)
    channel::format_header(*header, bytes, slot_count);
}

void Region::add_bell(int fd, bool device) {
  auto old = std::find_if(bells.begin(), bells.end(), [](const Bell& b) { return b.device; });
  // An eventfd does not tell that its guest is gone, but there is one device.
  if (!device || old == bells.end()) old = bells.size() < kMostBells ? bells.end() : bells.begin();
  if (old != bells.end()) {
    close(old->fd);
    bells.erase(old);
  }
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  bells.push_back({fd, device, 0});
}

void Region::forget_reports() {
  for (Slot& s : slots) s.open_reported = s.closed_reported = false;
}

}  // namespace sluice::doorbell
