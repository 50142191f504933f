// SPDX-License-Identifier: Apache-2.0
#include "client/cupti/calls.h"

#include <pthread.h>
#include <unistd.h>

#include <vector>

#include "client/cupti/clock.h"
#include "client/cupti/recorder.h"
#include "client/cupti/session.h"

namespace sluice::cupti {

namespace {

enum Choice : uint8_t { kRecorded = 1, kLeftOut = 2, kCalledBack = 4 };

thread_local std::vector<uint64_t> external_ids[kExternalKinds];
// A callback's own calls are not told of.
thread_local bool in_callback = false;

uint32_t thread_id(uint32_t type) {
  return type == 1 ? static_cast<uint32_t>(gettid()) : static_cast<uint32_t>(pthread_self());
}

size_t place(uint32_t domain, uint32_t number) {
  return size_t{domain - 1} * Calls::kNumbers + number;
}

// Contexts that come and go may be asked for, as PyTorch's profiler does when it is loaded, and are
// never told of: each call would have to be looked at for them.
bool is_of_contexts(uint32_t domain, uint32_t number) {
  constexpr uint32_t kResources = 3, kContextCreated = 1, kContextEnds = 2;
  return domain == kResources && (number == kContextCreated || number == kContextEnds);
}

bool is_call(uint32_t domain, uint32_t number) {
  return (domain == kDriverApi || domain == kRuntimeApi) && number > 0 && number < Calls::kNumbers;
}

}  // namespace

const client::ApiHooks Calls::kHooks = {&Calls::enter, &Calls::leave};

Calls& Calls::get() {
  static Calls* one = new Calls;
  return *one;
}

Calls::Calls()
    : flags_(new std::atomic<uint8_t>[kRemembered]()),
      choices_(new std::atomic<uint8_t>[size_t{2} * kNumbers]()) {}

void Calls::put_hooks() {
  const auto* s = session();
  if (!s) return;
  bool some = activities_.load() != 0 || node_records_;
  for (size_t i = 0; !some && i < size_t{2} * kNumbers; ++i)
    some = choices_[i].load() & (kRecorded | (callback_.load() ? kCalledBack : 0));
  s->set_hooks(some ? &kHooks : nullptr);
  s->set_marking(node_records_);
}

void Calls::record(uint64_t activities, bool node_records) {
  std::lock_guard lock(mutex_);
  activities_ = activities & (bit(kRuntime) | bit(kDriver) | bit(kExternalCorrelation));
  node_records_ = node_records;
  put_hooks();
}

bool Calls::record_call(uint32_t domain, uint32_t number, bool on) {
  if (!is_call(domain, number)) return false;
  std::lock_guard lock(mutex_);
  auto& choice = choices_[place(domain, number)];
  const uint8_t others = choice & kCalledBack;
  choice = static_cast<uint8_t>(others | (on ? kRecorded : kLeftOut));
  put_hooks();
  return true;
}

int Calls::subscribe(void** subscriber, Callback callback, void* data) {
  if (!subscriber) return kInvalidParameter;
  std::lock_guard lock(mutex_);
  if (subscriber_) return kMultipleSubscribers;
  *subscriber = subscriber_ = this;
  callback_data_ = data;
  callback_ = callback;
  put_hooks();
  return kSuccess;
}

int Calls::unsubscribe(void* subscriber) {
  std::lock_guard lock(mutex_);
  if (!subscriber_ || subscriber != subscriber_) return kInvalidParameter;
  subscriber_ = nullptr;
  callback_ = nullptr;
  for (size_t i = 0; i < size_t{2} * kNumbers; ++i)
    choices_[i].fetch_and(static_cast<uint8_t>(~kCalledBack));
  put_hooks();
  return kSuccess;
}

int Calls::enable(bool on, void* subscriber, uint32_t domain, uint32_t number) {
  std::lock_guard lock(mutex_);
  if (!subscriber_ || subscriber != subscriber_) return kInvalidParameter;
  if (domain == 0 || domain >= kDomains) return kInvalidParameter;
  if (is_of_contexts(domain, number)) return kSuccess;
  if (domain != kDriverApi && domain != kRuntimeApi) return on ? kNotSupported : kSuccess;
  if (!is_call(domain, number)) return kInvalidParameter;
  auto& choice = choices_[place(domain, number)];
  if (on)
    choice.fetch_or(kCalledBack);
  else
    choice.fetch_and(static_cast<uint8_t>(~kCalledBack));
  put_hooks();
  return kSuccess;
}

int Calls::enable_domain(bool on, void* subscriber, uint32_t domain) {
  if (domain != kDriverApi && domain != kRuntimeApi) return enable(on, subscriber, domain, 0);
  for (uint32_t number = 1; number < kNumbers; ++number)
    if (const int e = enable(on, subscriber, domain, number); e != kSuccess) return e;
  return kSuccess;
}

int Calls::callback_state(bool* on, void* subscriber, uint32_t domain, uint32_t number) {
  std::lock_guard lock(mutex_);
  if (!subscriber_ || subscriber != subscriber_ || !on) return kInvalidParameter;
  *on = is_call(domain, number) && choices_[place(domain, number)] & kCalledBack;
  return kSuccess;
}

bool Calls::knows(uint32_t correlation) const {
  return correlation != 0 && (turned_.load() || correlation <= last_.load());
}

uint8_t Calls::flags(uint32_t correlation) const { return flags_[correlation % kRemembered]; }

int Calls::push(uint32_t kind, uint64_t id) {
  if (kind == 0 || kind >= kExternalKinds) return kInvalidParameter;
  external_ids[kind].push_back(id);
  return kSuccess;
}

int Calls::pop(uint32_t kind, uint64_t* id) {
  if (kind == 0 || kind >= kExternalKinds) return kInvalidParameter;
  if (external_ids[kind].empty()) return kQueueEmpty;
  if (id) *id = external_ids[kind].back();
  external_ids[kind].pop_back();
  return kSuccess;
}

void Calls::enter(client::ApiCall* call) { get().begin(call); }
void Calls::leave(client::ApiCall* call, int result) { get().end(call, result); }

void Calls::begin(client::ApiCall* call) {
  client::CallMark& mark = *session()->mark();
  call->outermost = mark.depth++ == 0;
  if (!call->outermost) return;
  uint32_t number = last_.fetch_add(1) + 1;
  if (number == 0) {
    turned_ = true;
    number = last_.fetch_add(1) + 1;
  }
  call->correlation = mark.correlation = number;
  mark.gave_work = mark.pageable = false;
  flags_[number % kRemembered].store(0, std::memory_order_relaxed);
  tell(call, kEnter);
  call->start = Clock::get().now();
}

void Calls::end(client::ApiCall* call, int result) {
  client::CallMark& mark = *session()->mark();
  --mark.depth;
  if (!call->outermost) return;
  const uint64_t at = Clock::get().now();
  const bool library = call->domain == client::kLibraryDomain;
  flags_[call->correlation % kRemembered].store(
      static_cast<uint8_t>((mark.pageable ? kPageableCopy : 0) | (library ? kOfLibrary : 0)),
      std::memory_order_relaxed);
  if (!library)
    add_records(*call, call->domain, result, at);
  else if (mark.gave_work)
    add_records(*call, kRuntimeApi, 0, at);
  mark.correlation = 0;
  tell(call, kExit);
}

bool Calls::wants(uint32_t domain, uint32_t number) const {
  const uint8_t choice = choices_[place(domain, number)].load(std::memory_order_relaxed);
  if (choice & (kRecorded | kLeftOut)) return choice & kRecorded;
  return activities_.load(std::memory_order_relaxed) &
         bit(domain == kDriverApi ? kDriver : kRuntime);
}

void Calls::add_records(const client::ApiCall& call, uint32_t domain, int result, uint64_t end) {
  if (!is_call(domain, call.number) || !wants(domain, call.number)) return;
  Recorder& recorder = Recorder::get();
  if (activities_.load(std::memory_order_relaxed) & bit(kExternalCorrelation))
    for (uint32_t kind = 1; kind < kExternalKinds; ++kind)
      if (!external_ids[kind].empty())
        recorder.add(ExternalRecord{kExternalCorrelation, kind, external_ids[kind].back(),
                                    call.correlation, 0});
  CallRecord r{};
  r.kind = domain == kDriverApi ? kDriver : kRuntime;
  r.cbid = call.number;
  r.start = call.start;
  r.end = end;
  r.process = static_cast<uint32_t>(getpid());
  r.thread = thread_id(thread_id_type.load(std::memory_order_relaxed));
  r.correlation = call.correlation;
  r.result = static_cast<uint32_t>(result);
  recorder.add(r);
}

void Calls::tell(client::ApiCall* call, Site site) {
  const Callback callback = callback_.load(std::memory_order_acquire);
  if (!callback || in_callback || !is_call(call->domain, call->number)) return;
  if (!(choices_[place(call->domain, call->number)].load(std::memory_order_relaxed) & kCalledBack))
    return;
  CallbackData info{};
  info.site = site;
  info.function = call->name;
  info.params = call->params;
  info.result = site == kExit ? call->result : nullptr;
  info.context = session()->current();
  uint32_t device = 0;
  info.context_uid = session()->device_of(nullptr, &device) ? device + 1 : 0;
  info.data = &call->data;
  info.correlation = call->correlation;
  in_callback = true;
  callback(callback_data_.load(), call->domain, call->number, &info);
  in_callback = false;
}

}  // namespace sluice::cupti
