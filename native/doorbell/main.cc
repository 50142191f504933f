// SPDX-License-Identifier: Apache-2.0
// sluice-doorbell: one per host. Watches the guests' regions: wakes workers whose guest rang, tells
// the server of guests that open or end a session, and writes the server's refusals into mailboxes.
// A guest has no other way to reach the host; so this process outlives the server and holds nothing
// that cannot be learned again. It believes nothing that stands in a region: sizes come from the
// server, words are read once, nonsense is reported as an end.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "channel/futex.h"
#include "channel/region.h"
#include "wire/control.h"
#include "wire/frame.h"

namespace sluice::doorbell {
namespace {

using channel::SlotState;
using wire::Message;

constexpr uint64_t kFastNs = 50'000, kIdleNs = 2'000'000, kUnusedNs = 10'000'000;
constexpr uint64_t kRestNs =
    1'000'000'000;  // after so long without a word the host looks half as often
constexpr uint64_t kAbandonedNs =
    10'000'000'000;  // a slot claimed or refused by a client that is gone
constexpr uint64_t kSilentNs = 30'000'000'000;  // a running slot without a heartbeat
constexpr uint64_t kReportNs = 20'000'000;  // the least time between two reports of a slot: a guest
                                            // can change its words as fast as it likes
constexpr uint64_t kBeatNs = 100'000'000;
constexpr size_t kMostBells = 64;  // of one region, whose programs have one each

struct Slot {
  channel::MappedSlot map;
  bool open_reported = false, closed_reported = false;
  SlotState last = SlotState::kFree;
  uint64_t since = 0;      // when the state was first seen
  uint64_t heartbeat = 0;  // last seen value
  uint64_t heard = 0;      // when it last changed
  uint64_t told = 0;       // when the server last heard that it does not change
  uint64_t reported = 0;   // when the server last heard that it opens or closed
};

// On which a guest says that something is in its region: a connection, or the eventfd of its
// device's doorbell register.
struct Bell {
  int fd;
  bool device;
  uint64_t rang;  // when it was last heard
};

struct Region {
  std::string id, path;
  struct stat file {};
  channel::RegionHeader* header = nullptr;
  std::vector<Slot> slots;
  std::vector<Bell> bells;

  Region() = default;
  Region(const Region&) = delete;
  ~Region() {
    for (const Bell& bell : bells) close(bell.fd);
    if (header) munmap(header, channel::kPage);
  }
};

class Doorbell {
 public:
  explicit Doorbell(int listener) : control_(listener, wire::kDoorbellReceived) {}
  int run();

 private:
  void handle(Message& m);
  void add_bell(Message& m);
  // Waits for the server, a bell, or so long; takes what the bells said.
  void wait(uint64_t pause);
  bool watch(const Message& m, std::string* error);
  // True when the slot had something to say.
  bool scan(Region& r, uint32_t index, uint64_t now);
  bool report_open(Region& r, uint32_t index);
  Slot* find(const Message& m, Region** region, uint32_t* index);

  wire::Control control_;
  std::map<std::string, std::unique_ptr<Region>> regions_;
  std::vector<pollfd> polled_;
};

std::string hex(const std::byte* data, size_t n) {
  static const char* digits = "0123456789abcdef";
  std::string out;
  out.reserve(n * 2);
  for (size_t i = 0; i < n; ++i) {
    const auto b = static_cast<unsigned>(data[i]);
    out += digits[b >> 4];
    out += digits[b & 15];
  }
  return out;
}

bool Doorbell::watch(const Message& m, std::string* error) {
  uint64_t slots = 0;
  m.number("slots", &slots);
  auto r = std::make_unique<Region>();
  r->id = m.text("id");
  r->path = m.text("path");
  const int fd = open(r->path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0 || fstat(fd, &r->file) != 0 || !S_ISREG(r->file.st_mode)) {
    *error = r->path + ": " + (fd < 0 ? std::strerror(errno) : "not a regular file");
    if (fd >= 0) close(fd);
    return false;
  }
  const auto known = regions_.find(r->id);
  if (known != regions_.end() && known->second->file.st_dev == r->file.st_dev &&
      known->second->file.st_ino == r->file.st_ino &&
      known->second->file.st_size == r->file.st_size && known->second->slots.size() == slots) {
    close(fd);
    for (auto& s : known->second->slots) s.open_reported = s.closed_reported = false;
    return true;
  }
  const auto region_bytes = static_cast<size_t>(r->file.st_size);
  const size_t slot_bytes = channel::slot_bytes_of(region_bytes, static_cast<uint32_t>(slots));
  bool ok = channel::slot_layout(slot_bytes).total != 0;
  if (!ok)
    *error = r->path + ": " + std::to_string(region_bytes) + " bytes are too few for " +
             std::to_string(slots) + " slots of at least 4 MiB";
  // A region whose header is what we would write keeps its sessions; anything else is blank or
  // damaged and starts anew.
  channel::RegionHeader header{};
  std::string ignored;
  const bool valid = ok &&
                     pread(fd, &header, sizeof header, 0) == static_cast<ssize_t>(sizeof header) &&
                     channel::check_region(header, region_bytes, &ignored) == slot_bytes &&
                     header.slot_count == slots;
  for (uint32_t i = 0; ok && i < slots; ++i) {
    Slot s;
    ok = s.map.map(fd, slot_bytes, i, channel::kNoArena, error);
    if (ok && (!valid || s.map.header().magic != channel::kSlotMagic))
      channel::format_slot(s.map, i, SlotState::kFree);
    r->slots.push_back(std::move(s));
  }
  if (ok && !valid)
    ok = channel::format_region(fd, region_bytes, static_cast<uint32_t>(slots), error);
  if (ok) {
    void* page = mmap(nullptr, channel::kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ok = page != MAP_FAILED;
    if (ok)
      r->header = static_cast<channel::RegionHeader*>(page);
    else
      *error = r->path + ": " + std::strerror(errno);
  }
  close(fd);
  if (!ok) return false;
  regions_[r->id] = std::move(r);
  return true;
}

Slot* Doorbell::find(const Message& m, Region** region, uint32_t* index) {
  const auto it = regions_.find(m.text("id"));
  uint64_t slot = 0;
  m.number("slot", &slot);
  if (it == regions_.end() || slot >= it->second->slots.size()) return nullptr;
  *region = it->second.get();
  *index = static_cast<uint32_t>(slot);
  return &(*region)->slots[slot];
}

void Doorbell::add_bell(Message& m) {
  const auto it = regions_.find(m.text("id"));
  if (it == regions_.end() || m.descriptors.empty()) return;
  auto& bells = it->second->bells;
  const bool device = m.text("device") == "yes";
  auto old = std::find_if(bells.begin(), bells.end(), [](const Bell& b) { return b.device; });
  // An eventfd does not tell that its guest is gone, but there is one device.
  if (!device || old == bells.end()) old = bells.size() < kMostBells ? bells.end() : bells.begin();
  if (old != bells.end()) {
    close(old->fd);
    bells.erase(old);
  }
  const int fd = m.descriptors.front();
  m.descriptors.erase(m.descriptors.begin());
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  bells.push_back({fd, device, 0});
}

void Doorbell::handle(Message& m) {
  const auto id = m.text("id");
  if (m.verb == "watch") {
    std::string error;
    if (watch(m, &error))
      control_.send("watching", {{"id", id}});
    else
      control_.send("error", {{"id", id}, {"message", error}});
    return;
  }
  if (m.verb == "bell") {
    add_bell(m);
    return;
  }
  if (m.verb == "forget") {
    regions_.erase(id);
    return;
  }
  if (m.verb == "list") {
    std::map<std::string, std::string> all;
    for (const auto& [name, r] : regions_) all[name] = r->path;
    control_.send("regions", all);
    return;
  }
  Region* region;
  uint32_t index;
  Slot* slot = find(m, &region, &index);
  if (!slot) {
    control_.send("error", {{"id", id}, {"message", m.verb + ": no such region or slot"}});
    return;
  }
  auto& h = slot->map.header();
  if (m.verb == "refuse" || m.verb == "wait") {
    // The answer may have been overtaken: a grant, or a client that gave up.
    if (h.state.load() != static_cast<uint32_t>(SlotState::kOpening)) return;
    uint64_t status = 999;
    m.number("status", &status);
    wire::OpenReply reply{};
    reply.header = {sizeof reply, wire::kOpenReply, wire::kNoLane, 0, 0};
    reply.status = m.verb == "wait" ? 600 : static_cast<uint32_t>(status);
    const std::string& text = m.text("message");
    std::memcpy(reply.message, text.data(), std::min(text.size(), sizeof reply.message - 1));
    std::memcpy(slot->map.mailbox().data(), &reply, sizeof reply);
    uint32_t expected = static_cast<uint32_t>(SlotState::kOpening);
    if (m.verb == "refuse" &&
        h.state.compare_exchange_strong(expected, static_cast<uint32_t>(SlotState::kRefused))) {
      // Its next client may have opened it before the next look, which would see no change.
      slot->last = SlotState::kRefused;
      slot->since = channel::now_ns();
      slot->open_reported = false;
    }
  } else if (m.verb == "release") {
    // A guest that wrote over its region gets it back whole, or its next client would not find it.
    const auto bytes = static_cast<size_t>(region->file.st_size);
    const auto slots = static_cast<uint32_t>(region->slots.size());
    std::string damage;
    if (channel::check_region(*region->header, bytes, &damage) !=
            channel::slot_bytes_of(bytes, slots) ||
        region->header->slot_count != slots)
      channel::format_header(*region->header, bytes, slots);
    channel::format_slot(slot->map, index, SlotState::kFree);
    slot->open_reported = slot->closed_reported = false;
    slot->last = SlotState::kFree;
  }
}

bool Doorbell::report_open(Region& r, uint32_t index) {
  // Taken out of the guest's reach once, as long as it could be; what the copy says of its length
  // is what counts.
  std::byte request[sizeof(wire::OpenSession) + wire::kMaxWishBytes];
  std::memcpy(request, r.slots[index].map.mailbox().data(), sizeof request);
  wire::FrameHeader header;
  std::memcpy(&header, request, sizeof header);
  const size_t size = std::clamp<size_t>(header.size, sizeof(wire::OpenSession), sizeof request);
  return control_.send(
      "open", {{"id", r.id}, {"slot", std::to_string(index)}, {"request", hex(request, size)}});
}

bool Doorbell::scan(Region& r, uint32_t index, uint64_t now) {
  Slot& s = r.slots[index];
  auto& h = s.map.header();
  bool active = false;
  if (h.doorbell.load(std::memory_order_relaxed) &&
      h.doorbell.exchange(0, std::memory_order_seq_cst)) {
    h.wake.fetch_add(1, std::memory_order_seq_cst);
    channel::futex_wake(h.wake, 1);
    active = true;
  }
  const auto state = static_cast<SlotState>(h.state.load(std::memory_order_acquire));
  if (state != s.last) {
    s.last = state;
    s.since = s.heard = s.told = now;
    s.open_reported = s.closed_reported = false;
    active = true;
  }
  const auto closed = [&](const char* reason) {
    if (s.closed_reported || control_.connection() < 0 || now - s.reported < kReportNs) return;
    s.reported = now;
    // Its worker looks at the state when it wakes.
    h.wake.fetch_add(1);
    channel::futex_wake(h.wake, 1 << 20);
    s.closed_reported = control_.send(
        "closed", {{"id", r.id}, {"slot", std::to_string(index)}, {"reason", reason}});
  };
  switch (state) {
    case SlotState::kFree:
    case SlotState::kDead:
      break;
    case SlotState::kClaimed:
    case SlotState::kRefused:
      if (now - s.since > kAbandonedNs) channel::format_slot(s.map, index, SlotState::kFree);
      break;
    case SlotState::kOpening:
      if (!s.open_reported && control_.connection() >= 0 && now - s.reported >= kReportNs) {
        s.reported = now;
        s.open_reported = report_open(r, index);
      }
      break;
    case SlotState::kReady: {
      const uint64_t beat = h.heartbeat.load(std::memory_order_relaxed);
      if (beat != s.heartbeat) {
        s.heartbeat = beat;
        s.heard = s.told = now;
      } else if (now - s.told > kSilentNs) {
        control_.send("silent", {{"id", r.id},
                                 {"slot", std::to_string(index)},
                                 {"seconds", std::to_string((now - s.heard) / 1'000'000'000)}});
        s.told = now;
      }
      break;
    }
    case SlotState::kClosed:
      closed("the client closed its session or died");
      break;
    default:
      closed("the slot's state is nonsense: the guest has written over its region");
  }
  return active;
}

void Doorbell::wait(uint64_t pause) {
  polled_.assign({{control_.listener(), POLLIN, 0}, {control_.connection(), POLLIN, 0}});
  const uint64_t before = channel::now_ns();
  // One that rang just now is not listened to for as long as a busy guest is looked at anyway: none
  // can keep this process from pausing.
  for (auto& [id, r] : regions_)
    for (const Bell& bell : r->bells)
      polled_.push_back({before - bell.rang < kFastNs ? -1 : bell.fd, POLLIN, 0});
  const timespec t{0, static_cast<long>(pause)};
  if (ppoll(polled_.data(), polled_.size(), &t, nullptr) <= 0) return;
  const uint64_t now = channel::now_ns();
  size_t at = 2;
  for (auto& [id, r] : regions_)
    std::erase_if(r->bells, [&](Bell& bell) {
      if (!polled_[at++].revents) return false;
      char said[256];
      const ssize_t n = read(bell.fd, said, sizeof said);
      bell.rang = now;
      if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return false;
      close(bell.fd);
      return true;
    });
  if (polled_[0].revents) {
    control_.accept();
    for (auto& [id, r] : regions_)
      for (auto& s : r->slots) s.open_reported = s.closed_reported = false;
  }
  if (polled_[1].revents) {
    Message m;
    if (control_.receive(&m)) handle(m);
    for (int fd : m.descriptors) close(fd);
  }
}

int Doorbell::run() {
  uint64_t pause = kIdleNs, active_at = 0, beat_at = 0;
  for (;;) {
    wait(pause);
    const uint64_t now = channel::now_ns();
    bool used = false;
    for (auto& [id, r] : regions_) {
      for (uint32_t i = 0; i < r->slots.size(); ++i) {
        if (scan(*r, i, now)) active_at = now;
        used |= r->slots[i].last != SlotState::kFree;
      }
    }
    // Often while guests are busy, seldom while they rest: an idle host pays next to nothing.
    const uint64_t quiet = now - active_at;
    pause = quiet < 5'000'000 ? kFastNs
            : !used           ? kUnusedNs
            : quiet < kRestNs ? std::min(kIdleNs, quiet / 20)
                              : 2 * kIdleNs;
    if (now - beat_at > kBeatNs) {
      beat_at = now;
      for (auto& [id, r] : regions_) r->header->host_beat.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

// The account that a guest's QEMU runs as can cut its region's file short. Reading on would end
// this process, and with it what all other guests ring by: an empty page takes the missing one's
// place, on which nothing is rung.
void replace_missing_page(int signal_number, siginfo_t* what, void*) {
  const auto at = reinterpret_cast<uintptr_t>(what->si_addr) & ~(uintptr_t{channel::kPage} - 1);
  if (what->si_code != BUS_ADRERR || at == 0 ||
      mmap(reinterpret_cast<void*>(at), channel::kPage, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
    signal(signal_number, SIG_DFL);  // the next access ends the process
}

}  // namespace
}  // namespace sluice::doorbell

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  struct sigaction missing {};
  missing.sa_sigaction = sluice::doorbell::replace_missing_page;
  missing.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGBUS, &missing, nullptr);
  if (argc != 3 || std::strcmp(argv[1], "--control") != 0) {
    std::fprintf(stderr,
                 "usage: sluice-doorbell --control SOCKET\nStarted by sluice-server; "
                 "docs/protocol.md says how.\n");
    return 2;
  }
  prctl(PR_SET_TIMERSLACK, 5000);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (std::strlen(argv[2]) >= sizeof address.sun_path) {
    std::fprintf(stderr, "sluice-doorbell: the socket's path is too long: %s\n", argv[2]);
    return 1;
  }
  std::strcpy(address.sun_path, argv[2]);
  const int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  umask(0177);
  if (s < 0 || bind(s, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(s, 4) != 0) {
    std::fprintf(stderr, "sluice-doorbell: %s: %s\n", argv[2], std::strerror(errno));
    return 1;
  }
  return sluice::doorbell::Doorbell(s).run();
}
