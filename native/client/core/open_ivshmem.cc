// SPDX-License-Identifier: Apache-2.0
// Opening a session in a guest: find the region among the PCI devices, claim a slot, put the
// request into its mailbox, ring. A watcher process outside the application's tree marks the slot
// closed when the application dies.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "client/core/open_channel.h"
#include "client/core/slot_channel.h"
#include "client/core/view.h"
#include "client/watch/offsets.h"
#include "wire/address_windows.h"

extern char** environ;

namespace sluice::client {

using channel::SlotState;

namespace {

static_assert(offsetof(channel::RegionHeader, slot_bytes) == SLUICE_REGION_SLOT_BYTES);
static_assert(offsetof(channel::SlotHeader, state) == SLUICE_SLOT_STATE);
static_assert(offsetof(channel::SlotHeader, generation) == SLUICE_SLOT_GENERATION);
static_assert(offsetof(channel::SlotHeader, heartbeat) == SLUICE_SLOT_HEARTBEAT);
static_assert(offsetof(channel::SlotHeader, sleeping) == SLUICE_SLOT_SLEEPING);
static_assert(offsetof(channel::SlotHeader, doorbell) == SLUICE_SLOT_DOORBELL);

constexpr uint64_t kAnswerTimeoutNs = 30'000'000'000;  // of a host that says nothing at all
constexpr uint64_t kViewTimeoutNs = 15'000'000'000;
constexpr uint64_t kHoldPauseNs = 200'000'000;  // between two looks of whom nothing hurries

std::string read_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// The folder that this library was loaded from; the watcher lies beside it.
std::string own_folder() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&find_ivshmem), &info) || !info.dli_fname) return "";
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

// Starts `sluice-watch RESOURCE SLOT GENERATION PID`; it detaches itself, so waiting for it is
// short.
bool start_watcher(const std::string& resource, uint32_t slot, uint32_t generation,
                   std::string* error) {
  const char* given = std::getenv("SLUICE_WATCH");
  const std::string folder = own_folder();
  for (const std::string& path :
       {std::string(given ? given : ""), folder + "/sluice-watch", folder + "/../bin/sluice-watch",
        std::string("/usr/lib/sluice/sluice-watch")}) {
    if (path.empty() || access(path.c_str(), X_OK) != 0) continue;
    const std::string s = std::to_string(slot), g = std::to_string(generation),
                      p = std::to_string(getpid());
    const char* argv[] = {path.c_str(), resource.c_str(), s.c_str(), g.c_str(), p.c_str(), nullptr};
    // The loader variables of the application are not the watcher's business.
    const char* environment[] = {"PATH=/usr/bin:/bin", nullptr};
    pid_t pid;
    if (posix_spawn(&pid, path.c_str(), nullptr, nullptr, const_cast<char**>(argv),
                    const_cast<char**>(environment)) != 0)
      continue;
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  }
  *error = "sluice-watch cannot be started (looked beside " + folder +
           "): without it a killed program's vGPU would not come back; reinstall the guest bundle";
  return false;
}

// The registers of an ivshmem-doorbell device (QEMU, docs/specs/ivshmem-spec), in 32-bit words.
constexpr size_t kOwnId = 2, kDoorbell = 3;
// server/guests/ivshmem_doorbells.py is peer 0 of its device, with one vector.
constexpr uint32_t kHostsVector = 0;

// What the region's device can wake the host with, or its vsock device.
channel::Bell open_bell(const std::string& resource) {
  std::string registers = resource;
  int fd = -1;
  if (registers.ends_with("/resource2")) {
    registers.back() = '0';
    fd = open(registers.c_str(), O_RDWR | O_CLOEXEC);
  }
  if (fd >= 0) {
    void* page = mmap(nullptr, channel::kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (page != MAP_FAILED) {
      auto* word = static_cast<volatile uint32_t*>(page);
      channel::Bell bell(word, channel::kPage, word + kDoorbell, kHostsVector);
      // 0 is the host's own: a plain device has no other.
      if (const uint32_t id = word[kOwnId]; id > 0 && id <= 0xffff) return bell;
    }
  }
  return channel::Bell(open_vsock_bell());
}

// A slot of the region that is this process's, and the region's file, which is its owner's to
// close.
struct Claimed {
  channel::MappedSlot slot;
  uint32_t index = 0;
  int fd = -1;
};

bool claim_slot(const std::string& resource, Claimed* claimed, std::string* error) {
  const int fd = open(resource.c_str(), O_RDWR | O_CLOEXEC);
  struct stat st {};
  if (fd < 0 || fstat(fd, &st) != 0) {
    *error = resource + ": " + std::strerror(errno);
    return false;
  }
  void* page = mmap(nullptr, channel::kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) {
    *error = "mapping " + resource + ": " + std::strerror(errno);
    ::close(fd);
    return false;
  }
  const auto& region = *static_cast<channel::RegionHeader*>(page);
  const size_t slot_bytes = channel::check_region(region, static_cast<size_t>(st.st_size), error);
  const uint32_t slots = region.slot_count;
  munmap(page, channel::kPage);
  if (slot_bytes == 0) {
    ::close(fd);
    return false;
  }
  uint32_t index = 0;
  for (; index < slots; ++index) {
    channel::MappedSlot candidate;
    if (!candidate.map(fd, slot_bytes, index, channel::kNoArena, error)) break;
    auto& h = candidate.header();
    uint32_t expected = static_cast<uint32_t>(SlotState::kFree);
    if (h.magic != channel::kSlotMagic ||
        !h.state.compare_exchange_strong(expected, static_cast<uint32_t>(SlotState::kClaimed)))
      continue;
    candidate = channel::MappedSlot();
    if (!claimed->slot.map(fd, slot_bytes, index, wire::kArenaAddress, error)) {
      channel::MappedSlot again;
      std::string ignored;
      if (again.map(fd, slot_bytes, index, channel::kNoArena, &ignored))
        again.header().state.store(static_cast<uint32_t>(SlotState::kFree));
      ::close(fd);
      return false;
    }
    break;
  }
  if (!claimed->slot) {
    if (error->empty())
      *error =
          "all " + std::to_string(slots) +
          " slots of this machine's region are in use: end a program, or attach with more slots";
    ::close(fd);
    return false;
  }
  claimed->index = index;
  claimed->fd = fd;
  return true;
}

}  // namespace

std::string find_ivshmem(std::string* why) {
  const std::string root = "/sys/bus/pci/devices";
  DIR* dir = opendir(root.c_str());
  *why = "no ivshmem device in this machine";
  if (!dir) return "";
  std::string found;
  while (const dirent* entry = readdir(dir)) {
    const std::string device = root + "/" + entry->d_name;
    if (read_line(device + "/vendor") != "0x1af4" || read_line(device + "/device") != "0x1110")
      continue;
    const std::string resource = device + "/resource2";
    const int fd = open(resource.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) {
      *why = resource + ": " + std::strerror(errno) +
             (errno == EACCES ? " (join the group sluice, or install the udev rule)" : "");
      continue;
    }
    struct stat st {};
    fstat(fd, &st);
    void* page = mmap(nullptr, channel::kPage, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) {
      std::string error;
      if (channel::check_region(*static_cast<channel::RegionHeader*>(page),
                                static_cast<size_t>(st.st_size), &error))
        found = resource;
      else
        *why = resource + ": " + error;
      munmap(page, channel::kPage);
    }
    ::close(fd);
    if (!found.empty()) break;
  }
  closedir(dir);
  return found;
}

// The slot is this process's until it has read the answer; where it dies before, the doorbell frees
// it, as no session was ever in it. So nobody has to watch.
bool view_ivshmem(const std::string& resource, wire::OpenSession request,
                  const RequestOptions& options, std::string* text, Refusal* refusal) {
  request.channel = wire::ChannelKind::kIvshmem;
  Claimed claimed;
  if (!claim_slot(resource, &claimed, &refusal->text)) {
    refusal->nobody_answered = true;
    return false;
  }
  ::close(claimed.fd);
  auto& h = claimed.slot.header();
  h.client_pid.store(static_cast<uint32_t>(getpid()));
  h.client_start.store(request.start_time);
  const std::vector<std::byte> frame = open_frame(request, options);
  std::memcpy(claimed.slot.mailbox().data(), frame.data(), frame.size());
  h.state.store(static_cast<uint32_t>(SlotState::kOpening), std::memory_order_seq_cst);
  h.doorbell.store(1, std::memory_order_seq_cst);
  const uint64_t begun = channel::now_ns();
  uint64_t pause = 50'000;
  auto state = SlotState::kOpening;
  while ((state = static_cast<SlotState>(h.state.load(std::memory_order_acquire))) ==
             SlotState::kOpening &&
         channel::now_ns() - begun < kViewTimeoutNs) {
    channel::sleep_ns(pause);
    pause = std::min<uint64_t>(pause * 2, 2'000'000);
  }
  if (state == SlotState::kRefused) {
    std::vector<std::byte> reply(sizeof(wire::OpenReply) + wire::kMaxViewBytes);
    std::memcpy(reply.data(), claimed.slot.mailbox().data(), reply.size());
    h.state.store(static_cast<uint32_t>(SlotState::kFree));
    h.doorbell.store(1, std::memory_order_seq_cst);
    return read_view(reply.data(), reply.size(), "the host", text, refusal);
  }
  // A host that did start a session ends it when it sees this.
  h.state.store(static_cast<uint32_t>(SlotState::kClosed));
  h.doorbell.store(1, std::memory_order_seq_cst);
  refusal->text = state == SlotState::kOpening
                      ? "the host does not answer on " + resource +
                            ": is sluice-server running there, and is its sluice-doorbell of the "
                            "same release?"
                      : "the host knows no looking without a session: its release is older";
  return false;
}

std::unique_ptr<Channel> open_ivshmem(const std::string& resource, wire::OpenSession request,
                                      const RequestOptions& options, Refusal* refusal) {
  std::string* error = &refusal->text;
  request.channel = wire::ChannelKind::kIvshmem;
  Claimed claimed;
  if (!claim_slot(resource, &claimed, error)) return nullptr;
  channel::MappedSlot slot = std::move(claimed.slot);
  const uint32_t index = claimed.index;
  const int fd = claimed.fd;
  auto& h = slot.header();
  const uint32_t generation = h.generation.load();
  h.client_pid.store(static_cast<uint32_t>(getpid()));
  h.client_start.store(request.start_time);
  if (!start_watcher(resource, index, generation, error)) {
    h.state.store(static_cast<uint32_t>(SlotState::kFree));
    ::close(fd);
    return nullptr;
  }
  const std::vector<std::byte> frame = open_frame(request, options);
  std::memcpy(slot.mailbox().data(), frame.data(), frame.size());
  h.state.store(static_cast<uint32_t>(SlotState::kOpening), std::memory_order_seq_cst);
  h.doorbell.store(1, std::memory_order_seq_cst);

  uint64_t pause = 50'000, silent_since = channel::now_ns();
  std::string shown;
  for (;;) {
    const auto state = static_cast<SlotState>(h.state.load(std::memory_order_acquire));
    if (state == SlotState::kReady) break;
    wire::OpenReply reply;
    std::memcpy(&reply, slot.mailbox().data(), sizeof reply);
    reply.message[sizeof reply.message - 1] = 0;
    if (state == SlotState::kOpening) {
      // A waiting request: the line in the mailbox changes as the queue moves.
      if (reply.header.function == wire::kOpenReply && reply.status == 600) {
        silent_since = channel::now_ns();
        if (request.flags & wire::kHoldJob) {
          pause = kHoldPauseNs;
        } else if (shown != reply.message) {
          shown = reply.message;
          std::fprintf(stderr, "sluice: %s\n", shown.c_str());
        }
      }
      if (channel::now_ns() - silent_since < kAnswerTimeoutNs) {
        channel::sleep_ns(pause);
        pause = std::min<uint64_t>(pause * 2,
                                   request.flags & wire::kHoldJob ? kHoldPauseNs : 1'000'000);
        continue;
      }
      *error = "the host does not answer on " + resource + ": is sluice-server running there?";
    } else if (state == SlotState::kRefused) {
      *error = reply.message;
      refusal->status = reply.status;
    } else {
      *error = "the host took the region away while the session was being opened";
    }
    h.state.store(static_cast<uint32_t>(state == SlotState::kOpening ? SlotState::kClosed
                                                                     : SlotState::kFree));
    h.doorbell.store(1, std::memory_order_seq_cst);
    ::close(fd);
    return nullptr;
  }
  return channel_over(std::move(slot), wire::ChannelKind::kIvshmem, -1, fd, open_bell(resource));
}

}  // namespace sluice::client
