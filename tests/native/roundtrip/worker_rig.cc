// SPDX-License-Identifier: Apache-2.0
#include "tests/native/roundtrip/worker_rig.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "channel/slot.h"
#include "pci_address.h"
#include "worker/node_links.h"
#include "worker/shared_event.h"

namespace sluice::test {

namespace {
constexpr size_t kMarkBytes = channel::kMarkCount * sizeof(uint64_t);

std::byte* map(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(at);
}
}  // namespace

RigEndpoint::RigEndpoint()
    : arena_(map(kArenaBytes)), marks_(reinterpret_cast<std::atomic<uint64_t>*>(map(kMarkBytes))) {
  Recording::get().host.add(arena_, kArenaBytes);
  Recording::get().marks.add(marks_, kMarkBytes);
}

RigEndpoint::~RigEndpoint() {
  munmap(arena_, kArenaBytes);
  munmap(marks_, kMarkBytes);
}

size_t RigEndpoint::mark_count() const { return channel::kMarkCount; }

WorkerRig::WorkerRig() {
  Recording& r = Recording::get();
  r.reset(&driver_);
  r.writing_down = false;
  gpus_.resize(2);
  for (int i = 0; i < 2; ++i) {
    worker::Gpu& g = gpus_[static_cast<size_t>(i)];
    g.ordinal = 10 + i;
    g.uuid.bytes[15] = static_cast<char>(i);
    g.name = "recording driver";
    g.pci_bus_id = PciAddress{0, 10u + static_cast<uint32_t>(i), 0, 0}.text();
    g.memory_bytes = 1ull << 30;
    g.context = r.mint<CUcontext>(r.contexts);
    g.house = r.mint<CUstream>(r.streams);
  }
  worker::SessionPlan plan;
  plan.id = "1";
  plan.windows = 4, plan.first_window = 2;  // as if two more were another node's
  for (const auto& g : gpus_) plan.vgpus.push_back({worker::uuid_text(g.uuid), 256, 100});
  auto endpoint = std::make_unique<RigEndpoint>();
  endpoint_ = endpoint.get();
  session_ = std::make_unique<worker::Session>(driver_, std::move(endpoint), plan);
  std::string error;
  if (!session_->open(gpus_, &error)) throw std::runtime_error(error);
  broker_.gpu = worker::uuid_text(gpus_[0].uuid);
  session_->broker = &broker_;
  // There is no server that could be asked to dial.
  session_->links = std::make_unique<worker::NodeLinks>(
      *session_, [](uint32_t, uint32_t epoch) { return epoch == 0; });
  r.writing_down = true;
}

// What the session gives back is no call of the frame that comes next.
WorkerRig::~WorkerRig() {
  const bool before = std::exchange(Recording::get().writing_down, false);
  session_.reset();
  Recording::get().writing_down = before;
}

bool FakeBroker::share(const wire::ShareKey& key, const worker::SharedThing& thing,
                       std::string* why) {
  *why = refusal;
  if (refusal.empty()) shared[worker::key_text(key)] = thing;
  return refusal.empty();
}

void FakeBroker::unshare(const wire::ShareKey& key) { shared.erase(worker::key_text(key)); }

bool FakeBroker::fetch(const wire::ShareKey&, const std::string& kind, worker::SharedThing* thing,
                       std::string* why) {
  *why = refusal;
  if (!refusal.empty()) return false;
  const bool memory = kind == "memory";
  *thing = {kind, gpu, memory ? 2ull << 20 : worker::EventRegion::kBytes, -1};
  thing->fd = memfd_create("fake", MFD_CLOEXEC);
  return ftruncate(thing->fd, static_cast<off_t>(thing->bytes)) == 0;
}

bool WorkerRig::dispatch(const wire::FrameHeader& header, std::span<const std::byte> body,
                         Answer* answer) {
  const auto& table = worker::dispatch_table();
  const worker::Command command{header, body};
  using Answered = worker::Handler::Answered;
  const worker::Handler* h = header.function < table.size() ? &table[header.function] : nullptr;
  if (!h || !h->run || (h->answered == Answered::kOnly && !command.answered()) ||
      (h->answered == Answered::kNever && command.answered())) {
    session_->reject("a command that this worker does not speak");
    return false;
  }
  Recording::get().frame = body;
  worker::Reply reply;
  h->run(*session_, command, reply);
  Recording::get().frame = {};
  // What it left to the compiler's thread is done, too, when this returns.
  if (auto& compiler = session_->compiler; compiler.started() && !compiler.run([] {}))
    throw std::runtime_error("no thread");
  if (session_->rejected()) return false;
  answer->status = reply.status;
  answer->body.assign(reply.body.begin(), reply.body.end());
  answer->body.insert(answer->body.end(), reply.borrowed.begin(), reply.borrowed.end());
  if (answer->body.size() > wire::kMaxAnswer) throw std::runtime_error("too large an answer");
  return true;
}

}  // namespace sluice::test
