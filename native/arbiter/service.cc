// SPDX-License-Identifier: Apache-2.0
#include "arbiter/service.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "channel/futex.h"
#include "process/log.h"

namespace sluice::arbiter {

namespace {

// An honest worker rings once or twice in a turn, which small ones end soon.
constexpr Nanoseconds kWindowNs = 10'000'000;
constexpr int kMostRings = 200;

// What epoll says: one of these, or a worker's number with the bit for its process.
constexpr uint64_t kListener = 0, kServer = ~0ull, kProcess = 1ull << 63;

Nanoseconds now_ns() { return static_cast<Nanoseconds>(channel::now_ns()); }

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    if (end > at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

constexpr uint64_t kMib = 1 << 20;

std::string key_of(const char* list, size_t n, const char* field) {
  return std::string(list) + "." + std::to_string(n) + "." + field;
}

// What a join says of the memory of its vGPUs, in their order.
std::vector<MemberMemory> read_memory(const process::Message& m) {
  std::vector<MemberMemory> all;
  uint64_t count = 0;
  m.number("vgpus", &count);
  for (size_t n = 0; n < count; ++n) {
    uint64_t promised = 0, fixed = 0, out = 0;
    m.number(key_of("vgpu", n, "memory_mib"), &promised);
    m.number(key_of("vgpu", n, "fixed_mib"), &fixed);
    m.number(key_of("vgpu", n, "out_mib"), &out);
    all.push_back({m.text(key_of("vgpu", n, "gpu")), promised * kMib, fixed * kMib, out * kMib});
  }
  return all;
}

uint64_t read_kept(const process::Message& m) {
  uint64_t mib = 0;
  m.number("kept_mib", &mib);
  return std::min<uint64_t>(mib, ~0ull / kMib) * kMib;
}

// nullptr with `error`. Its size is sealed, so that who else has it cannot take it away.
TurnPage* map_page(int fd, std::string* error) {
  struct stat about {};
  constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSealed) != kSealed || fstat(fd, &about) != 0 ||
      about.st_size != static_cast<off_t>(kTurnPageBytes))
    return *error = "page: it is no memory of a page whose size is sealed", nullptr;
  void* at = mmap(nullptr, kTurnPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED)
    return *error = std::string("page: it cannot be mapped: ") + std::strerror(errno), nullptr;
  auto* page = static_cast<TurnPage*>(at);
  if (page->magic == wire::kTurnPageMagic) return page;
  munmap(at, kTurnPageBytes);
  return *error = "page: it does not begin as one does", nullptr;
}

}  // namespace

// The worker and the server have both descriptors, too, so closing them here ends no watching.
Service::Worker::~Worker() {
  if (page) munmap(page, kTurnPageBytes);
  for (const int fd : {bell, process}) {
    if (fd < 0) continue;
    epoll_ctl(poll, EPOLL_CTL_DEL, fd, nullptr);
    close(fd);
  }
}

bool Service::watch(int fd, uint64_t what, bool each_time) {
  epoll_event event{each_time ? EPOLLIN | EPOLLET : EPOLLIN, {.u64 = what}};
  return epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &event) == 0;
}

// One that ended was closed, and left the set with that; its successor may have its number.
void Service::follow_server() {
  control_.accept();
  watch(control_.connection(), kServer);
}

bool Service::join(process::Message& m, Nanoseconds now, std::string* error) {
  const std::string& id = m.text("id");
  TenantRequest request;
  uint64_t percent = 100, capped = 0;
  m.number("percent", &percent);
  m.number("capped", &capped);
  request = {m.text("tenant"), split(m.text("gpus")), static_cast<uint32_t>(percent), capped == 1};
  uint64_t priority = 0, away = 0;
  m.number("priority", &priority);
  m.number("away", &away);
  request.priority = static_cast<uint32_t>(priority);
  request.away = away == 1;
  request.kept = read_kept(m);
  request.memory = read_memory(m);
  if (workers_.contains(id)) return arbiter_.join(id, request, nullptr, now, error);
  if (m.descriptors.size() != 3)
    return *error = "descriptors: page, bell and process are needed", false;
  auto worker = std::make_unique<Worker>();
  worker->id = id;
  worker->page = map_page(m.descriptors[0], error);
  close(m.descriptors[0]);
  worker->bell = m.descriptors[1];
  worker->process = m.descriptors[2];
  m.descriptors.clear();
  if (!worker->page) return false;
  worker->poll = poll_;
  const uint64_t number = next_++;
  if (!watch(worker->bell, number, true) || !watch(worker->process, number | kProcess))
    return *error = std::string("descriptors: ") + std::strerror(errno), false;
  if (!arbiter_.join(id, request, worker->page, now, error)) return false;
  by_number_[number] = worker.get();
  workers_[id] = std::move(worker);
  return true;
}

void Service::leave(const std::string& id, Nanoseconds now) {
  const auto found = workers_.find(id);
  if (found == workers_.end()) return;
  arbiter_.leave(id, now);
  std::erase_if(by_number_, [&](const auto& each) { return each.second == found->second.get(); });
  workers_.erase(found);
}

void Service::figures(Nanoseconds now) {
  std::map<std::string, std::string> v;
  size_t n = 0;
  const auto memories = arbiter_.memory_figures(now);
  for (const auto& [tenant, had] : arbiter_.figures(now)) {
    const std::string key = "tenant." + std::to_string(n++) + ".";
    v[key + "id"] = tenant;
    v[key + "held_us"] = std::to_string(had.held / 1000);
    v[key + "overdue_us"] = std::to_string(had.overdue / 1000);
    v[key + "waited_us"] = std::to_string(had.waited / 1000);
    v[key + "together_us"] = std::to_string(had.together / 1000);
    v[key + "turns"] = std::to_string(had.turns);
    const MemoryFigures& memory = memories.at(tenant);
    v[key + "resident_mib"] = std::to_string((memory.resident + kMib - 1) / kMib);
    v[key + "out_mib"] = std::to_string(memory.out / kMib);
    v[key + "moves"] = std::to_string(memory.moves);
    v[key + "memory_waited_us"] = std::to_string(memory.waited / 1000);
    v[key + "memory_why"] = memory.why;
  }
  v["tenants"] = std::to_string(n);
  control_.send("figures", v);
}

void Service::set_memory(process::Message& m) {
  uint64_t mib = 0, margin_mib = 0;
  m.number("memory_mib", &mib);
  m.number("margin_mib", &margin_mib);
  std::string error;
  if (!arbiter_.set_memory(m.text("gpu"), mib * kMib, margin_mib * kMib, &error))
    control_.send("error", {{"message", error}});
}

void Service::memory_moved(process::Message& m, Nanoseconds now) {
  std::map<std::string, uint64_t> out, missing;
  uint64_t count = 0;
  m.number("gpus", &count);
  for (size_t n = 0; n < count; ++n) {
    uint64_t mib = 0, missing_mib = 0;
    m.number(key_of("gpu", n, "out_mib"), &mib);
    m.number(key_of("gpu", n, "missing_mib"), &missing_mib);
    const std::string& gpu = m.text(key_of("gpu", n, "uuid"));
    out[gpu] = mib * kMib;
    missing[gpu] = missing_mib * kMib;
  }
  arbiter_.memory_kept(m.text("tenant"), read_kept(m));
  arbiter_.memory_moved(m.text("tenant"), out, m.text("message"), missing, now);
}

// Where there is no server, the next one says where everybody is, and it begins anew.
void Service::order_memory() {
  for (const MemoryOrder& order : arbiter_.take_memory_orders()) {
    std::map<std::string, std::string> v{{"tenant", order.tenant}, {"out", order.out ? "1" : "0"}};
    size_t n = 0;
    for (const auto& [gpu, bytes] : order.bytes) {
      v[key_of("gpu", n, "uuid")] = gpu;
      v[key_of("gpu", n++, "mib")] = std::to_string((bytes + kMib - 1) / kMib);
    }
    v["gpus"] = std::to_string(n);
    control_.send("move", v);
  }
}

void Service::handle(process::Message& m, Nanoseconds now) {
  uint64_t number = 0;
  if (m.verb == "join") {
    std::string error;
    const std::string id = m.text("id");
    if (join(m, now, &error))
      control_.send("joined", {{"id", id}});
    else
      control_.send("error", {{"id", id}, {"message", error}});
  } else if (m.verb == "leave") {
    leave(m.text("id"), now);
  } else if (m.verb == "share") {
    uint64_t capped = 0;
    m.number("percent", &number);
    m.number("capped", &capped);
    arbiter_.share(m.text("tenant"), static_cast<uint32_t>(number), capped == 1, now);
  } else if (m.verb == "settings") {
    m.number("period_ms", &number);
    arbiter_.set_period(static_cast<Nanoseconds>(number) * 1'000'000);
    uint64_t together = 1;
    m.number("together", &together);
    arbiter_.allow_together(together == 1);
  } else if (m.verb == "idle") {
    m.number("idle_ms", &number);
    arbiter_.set_idle(static_cast<Nanoseconds>(number) * 1'000'000);
  } else if (m.verb == "memory") {
    set_memory(m);
  } else if (m.verb == "memory_moved") {
    memory_moved(m, now);
  } else if (m.verb == "memory_kept") {
    arbiter_.memory_kept(m.text("tenant"), read_kept(m));
  } else if (m.verb == "hold") {
    m.number("for_ms", &number);
    const auto lasts = static_cast<Nanoseconds>(number) * 1'000'000;
    lasts ? arbiter_.hold(m.text("tenant"), lasts, now) : arbiter_.go_on(m.text("tenant"));
  } else if (m.verb == "figures") {
    figures(now);
  }
  for (const int fd : m.descriptors) close(fd);
}

// A bell is never read: its worker could have that wait without end. Each ring is told of once.
void Service::rang(Worker& w, Nanoseconds now) {
  if (now - w.window > kWindowNs) {
    w.window = now;
    w.rings = 0;
  }
  if (++w.rings < kMostRings) return;
  w.deaf = true;
  epoll_ctl(poll_, EPOLL_CTL_DEL, w.bell, nullptr);
}

// When the first of those is listened to again; kForever: all are.
Nanoseconds Service::listen_again(Nanoseconds now) {
  Nanoseconds next = kForever;
  for (auto& [number, w] : by_number_) {
    if (!w->deaf) continue;
    if (now - w->window <= kWindowNs) {
      next = std::min(next, w->window + kWindowNs + 1);
    } else if (watch(w->bell, number, true)) {
      w->deaf = false;
    }
  }
  return next;
}

void Service::take(uint64_t what, Nanoseconds now) {
  if (what == kListener) return follow_server();
  if (what == kServer) {
    process::Message m;
    if (control_.receive(&m)) return handle(m, now);
    for (const int fd : m.descriptors) close(fd);
    return;
  }
  const auto found = by_number_.find(what & ~kProcess);
  if (found == by_number_.end()) return;  // it left just now
  if (what & kProcess)
    leave(std::string(found->second->id), now);
  else
    rang(*found->second, now);
}

void Service::wait(Nanoseconds until) {
  pollfd ready{poll_, POLLIN, 0};
  const Nanoseconds left = std::max<Nanoseconds>(0, until - now_ns());
  const timespec t{static_cast<time_t>(left / 1'000'000'000),
                   static_cast<long>(left % 1'000'000'000)};
  if (ppoll(&ready, 1, until == kForever ? nullptr : &t, nullptr) <= 0) return;
  std::array<epoll_event, 64> events;
  const int n = epoll_wait(poll_, events.data(), events.size(), 0);
  const Nanoseconds now = now_ns();
  for (int i = 0; i < n; ++i) take(events[static_cast<size_t>(i)].data.u64, now);
}

int Service::run() {
  poll_ = epoll_create1(EPOLL_CLOEXEC);
  if (poll_ < 0 || !watch(control_.listener(), kListener)) {
    process::log_error(std::string("epoll: ") + std::strerror(errno));
    return 1;
  }
  for (;;) {
    const Nanoseconds next = arbiter_.look(now_ns());
    order_memory();
    for (const std::string& tenant : arbiter_.take_still())
      control_.send("still", {{"tenant", tenant}});
    wait(std::min(next, listen_again(now_ns())));
    process::log_settle();
  }
}

}  // namespace sluice::arbiter
