// SPDX-License-Identifier: Apache-2.0
#include "worker/shared_event.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "channel/futex.h"
#include "process/log.h"
#include "worker/dispatch.h"

namespace sluice::worker {

std::unique_ptr<EventRegion> EventRegion::make(const Driver& driver, int fd, CUresult* error) {
  struct stat st {};
  *error = CUDA_ERROR_OPERATING_SYSTEM;
  // Shorter than that, a read of it would end the process.
  if (fstat(fd, &st) != 0 || st.st_size != static_cast<off_t>(kBytes)) return nullptr;
  void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return nullptr;
  CUdeviceptr device = 0;
  *error = driver.cuMemHostRegister_v2(at, kBytes,
                                       CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (*error == CUDA_SUCCESS) *error = driver.cuMemHostGetDevicePointer_v2(&device, at, 0);
  if (*error != CUDA_SUCCESS) {
    munmap(at, kBytes);
    return nullptr;
  }
  return std::unique_ptr<EventRegion>(
      new EventRegion(static_cast<std::atomic<uint64_t>*>(at), device));
}

EventRegion::~EventRegion() { munmap(words_, kBytes); }

CUresult EventRegion::record(const Driver& driver, CUstream stream, uint32_t index) {
  const uint64_t n = word(index, 0).fetch_add(1) + 1;
  const uint32_t mark = mark_of(n);
  // The mark's last write is seven records old and may be under way all the same; landing late it
  // would hide this one.
  if (n > kMarks && word(index, mark).load() < n - kMarks) {
    const CUresult e = driver.cuStreamWaitValue64_v2(stream, address(index, mark), n - kMarks,
                                                     CU_STREAM_WAIT_VALUE_GEQ);
    if (e != CUDA_SUCCESS) return e;
  }
  return driver.cuStreamWriteValue64_v2(stream, address(index, mark), n, 0);
}

CUresult EventRegion::wait(const Driver& driver, CUstream stream, uint32_t index) {
  const uint64_t n = word(index, 0).load();
  if (n == 0 || word(index, mark_of(n)).load() >= n) return CUDA_SUCCESS;
  return driver.cuStreamWaitValue64_v2(stream, address(index, mark_of(n)), n,
                                       CU_STREAM_WAIT_VALUE_GEQ);
}

bool EventRegion::done(uint32_t index) const {
  const uint64_t n = word(index, 0).load();
  return n == 0 || word(index, mark_of(n)).load() >= n;
}

void EventRegion::release_all() {
  for (uint32_t i = 0; i < kEvents; ++i) {
    const uint64_t n = word(i, 0).load();
    for (uint32_t mark = 1; n && mark <= kMarks; ++mark) word(i, mark).store(n);
  }
}

SharedEvents::~SharedEvents() {
  if (own_fd_ >= 0) ::close(own_fd_);
}

CUresult SharedEvents::create(SharedEventObject* event) {
  std::lock_guard lock(mutex_);
  if (!own_) {
    const int fd = memfd_create("sluice-events", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    CUresult e = CUDA_ERROR_OPERATING_SYSTEM;
    if (ftruncate(fd, EventRegion::kBytes) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
      own_ = EventRegion::make(s_.driver, fd, &e);
    if (!own_) {
      ::close(fd);
      return e;
    }
    own_fd_ = fd;
    own_key_ = random_key();
  }
  // One whose last record is under way still rests: it would not look fresh.
  const auto rested =
      std::find_if(free_.begin(), free_.end(), [&](uint32_t i) { return own_->done(i); });
  if (rested != free_.end()) {
    event->index = *rested;
    free_.erase(rested);
  } else if (used_ < EventRegion::kEvents) {
    event->index = used_++;
  } else {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  event->region = own_.get();
  return CUDA_SUCCESS;
}

void SharedEvents::destroy(const SharedEventObject& event) {
  std::lock_guard lock(mutex_);
  if (event.region == own_.get()) free_.push_back(event.index);
}

// The lock is never held while the broker waits for the server: the thread that hears its answer
// takes it too (gone()).
CUresult SharedEvents::share(const SharedEventObject& event, wire::SharedEvent* shared) {
  std::unique_lock lock(mutex_);
  if (event.region != own_.get()) return CUDA_ERROR_INVALID_HANDLE;
  if (!offered_) {
    if (!s_.broker) return CUDA_ERROR_NOT_SUPPORTED;
    std::string why;
    const SharedThing thing{"events", "", EventRegion::kBytes, own_fd_};
    lock.unlock();
    const bool taken = s_.broker->share(own_key_, thing, &why);
    lock.lock();
    if (!taken && !offered_) {
      process::log_error("events cannot be shared with other processes: " + why);
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    offered_ = true;
  }
  *shared = {own_key_, event.index};
  return CUDA_SUCCESS;
}

CUresult SharedEvents::open(const wire::SharedEvent& shared, SharedEventObject* event) {
  std::unique_lock lock(mutex_);
  if (shared.index >= EventRegion::kEvents) return CUDA_ERROR_INVALID_VALUE;
  event->index = static_cast<uint32_t>(shared.index);
  const bool own = offered_ && own_key_ == shared.key;
  event->region = own ? own_.get() : nullptr;
  if (const auto it = others_.find(shared.key); it != others_.end())
    event->region = it->second.get();
  if (event->region) return CUDA_SUCCESS;
  if (!s_.broker) return CUDA_ERROR_NOT_SUPPORTED;
  SharedThing thing;
  std::string why;
  lock.unlock();
  if (!s_.broker->fetch(shared.key, "events", &thing, &why)) {
    process::log_error("an event of another process cannot be opened: " + why);
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult e = CUDA_SUCCESS;
  lock.lock();
  // Another thread may have opened it meanwhile.
  s_.ties.tie(Tie::kOpenedEvents);
  auto& region = others_[shared.key];
  if (!region) region = EventRegion::make(s_.driver, thing.fd, &e);
  ::close(thing.fd);
  event->region = region.get();
  if (!region) others_.erase(shared.key);
  return e;
}

void SharedEvents::gone(const std::string& key) {
  std::lock_guard lock(mutex_);
  for (auto& [known, region] : others_)
    if (key_text(known) == key) region->release_all();
}

namespace {

// The event that a command names; nullptr after a rejection.
bool find(Session& s, uint64_t id, SharedEventObject* event) {
  if (s.objects.shared_events.get(id, event)) return true;
  s.reject("a command names a shared event that the session does not have");
  return false;
}

void create(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::EventId>();
  if (!d.ok() || !s.objects.shared_events.has_room(m.event) || !s.objects.events.has_room(m.event))
    return s.reject("SharedEventCreate mints no id that is free");
  if (!s.use_context(c.header.context)) return;
  SharedEventObject event;
  reply.status = s.events_of_others->create(&event);
  if (reply.status == CUDA_SUCCESS) s.objects.shared_events.add(m.event, event);
}

void destroy(Session& s, const Command& c, Reply&) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::EventId>();
  SharedEventObject event;
  if (!d.ok() || !s.objects.shared_events.take(m.event, &event))
    return s.reject("SharedEventDestroy names an event that the session does not have");
  s.events_of_others->destroy(event);
}

void record(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::SharedEventUse>();
  SharedEventObject event;
  CUstream stream;
  if (!d.ok()) return s.reject("SharedEventRecord is cut short");
  if (!find(s, m.event, &event) || !s.stream(m.stream, c.header.context, &stream)) return;
  reply.status = event.region->record(s.driver, stream, event.index);
}

void wait(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::SharedEventUse>();
  SharedEventObject event;
  CUstream stream;
  if (!d.ok()) return s.reject("SharedEventWait is cut short");
  if (!find(s, m.event, &event) || !s.stream(m.stream, c.header.context, &stream)) return;
  reply.status = event.region->wait(s.driver, stream, event.index);
}

void query(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::EventId>();
  SharedEventObject event;
  if (!d.ok()) return s.reject("SharedEventQuery is cut short");
  if (find(s, m.event, &event) && !event.region->done(event.index))
    reply.status = CUDA_ERROR_NOT_READY;
}

// The word is written by a GPU, which wakes nobody: looks again, ever less often.
void synchronize(Session& s, const Command& c, Reply& reply) {
  constexpr uint64_t kLongestPause = 500'000, kLookAfterContext = 50'000'000;
  Decoder d(c.body);
  const auto& m = d.fixed<wire::EventId>();
  SharedEventObject event;
  if (!d.ok()) return s.reject("SharedEventSynchronize is cut short");
  Vgpu* v = s.use_context(c.header.context);
  if (!v || !find(s, m.event, &event)) return;
  uint64_t pause = 5'000, looked = channel::now_ns();
  while (!event.region->done(event.index)) {
    channel::sleep_ns(pause);
    pause = std::min(pause * 2, kLongestPause);
    const uint64_t now = channel::now_ns();
    if (now - looked < kLookAfterContext) continue;
    looked = now;
    // A context that died writes nothing more.
    const CUresult e = s.driver.cuStreamQuery(v->gpu->house);
    if (is_sticky(e)) return void(reply.status = e);
  }
}

void share(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::EventId>();
  SharedEventObject event;
  if (!d.ok()) return s.reject("ShareEvent is cut short");
  if (!find(s, m.event, &event)) return;
  wire::SharedEvent shared{};
  reply.status = s.events_of_others->share(event, &shared);
  reply.put(shared);
}

void open(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::OpenSharedEvent>();
  if (!d.ok() || !s.objects.shared_events.has_room(m.id) || !s.objects.events.has_room(m.id))
    return s.reject("OpenSharedEvent mints no id that is free");
  if (!s.use_context(c.header.context)) return;
  SharedEventObject event;
  reply.status = s.events_of_others->open(m.event, &event);
  if (reply.status == CUDA_SUCCESS) s.objects.shared_events.add(m.id, event);
}

}  // namespace

void add_shared_event_handlers(DispatchTable& t) {
  t[wire::kSharedEventCreate].run = create;
  t[wire::kSharedEventDestroy].run = destroy;
  t[wire::kSharedEventRecord].run = record;
  t[wire::kSharedEventWait].run = wait;
  t[wire::kSharedEventQuery].run = query;
  t[wire::kSharedEventSynchronize].run = synchronize;
  t[wire::kShareEvent].run = share;
  t[wire::kOpenSharedEvent].run = open;
}

}  // namespace sluice::worker
