// SPDX-License-Identifier: Apache-2.0
// The program's calls of the runtime and the driver, as a profiler is told of them: numbered, timed
// and recorded here, in the program; the number goes with the commands that the call sends, so that
// the node's records come back with it. Calls within calls are one. Hooks are in place only while
// somebody wants records or callbacks.
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <memory>
#include <mutex>

#include "client/profile/api_calls.h"
#include "cupti_abi.h"

namespace sluice::cupti {

using Callback = void (*)(void* data, uint32_t domain, uint32_t number, const CallbackData* info);

class Calls {
 public:
  static Calls& get();

  // How many there are of each domain.
  static constexpr uint32_t kNumbers = 1024;
  enum Flag : uint8_t { kPageableCopy = 1, kOfLibrary = 2 };

  // Whether calls are recorded (bits of kRuntime, kDriver, kExternalCorrelation), and whether the
  // node records, which needs them numbered.
  void record(uint64_t activities, bool node_records);
  // A single call of a domain, whatever else is recorded.
  bool record_call(uint32_t domain, uint32_t number, bool on);
  // kInvalidParameter and its like.
  int subscribe(void** subscriber, Callback callback, void* data);
  int unsubscribe(void* subscriber);
  int enable(bool on, void* subscriber, uint32_t domain, uint32_t number);
  int enable_domain(bool on, void* subscriber, uint32_t domain);
  int callback_state(bool* on, void* subscriber, uint32_t domain, uint32_t number);

  // Whether a call had that number. Numbers are given once around 2^32.
  bool knows(uint32_t correlation) const;
  uint8_t flags(uint32_t correlation) const;
  // How threads are named in records: 0 by pthread_self(), 1 by gettid().
  std::atomic<uint32_t> thread_id_type{0};

  // The calling thread's ids of a profiler's own.
  static int push(uint32_t kind, uint64_t id);
  static int pop(uint32_t kind, uint64_t* id);

 private:
  Calls();
  static void enter(client::ApiCall* call);
  static void leave(client::ApiCall* call, int result);
  void begin(client::ApiCall* call);
  void end(client::ApiCall* call, int result);
  bool wants(uint32_t domain, uint32_t number) const;
  void tell(client::ApiCall* call, Site site);
  void add_records(const client::ApiCall& call, uint32_t domain, int result, uint64_t end);
  // Under the mutex.
  void put_hooks();

  static constexpr uint32_t kRemembered = 1 << 20;  // calls whose flags are known
  static const client::ApiHooks kHooks;

  std::mutex mutex_;
  bool node_records_ = false;
  void* subscriber_ = nullptr;
  std::atomic<Callback> callback_{nullptr};
  std::atomic<void*> callback_data_{nullptr};
  std::atomic<uint64_t> activities_{0};
  std::atomic<uint32_t> last_{0};
  std::atomic<bool> turned_{false};  // numbers have begun again
  std::unique_ptr<std::atomic<uint8_t>[]> flags_;
  // By domain - 1: which calls are recorded though the domain is not, or the other way round, and
  // of which callbacks are made.
  std::unique_ptr<std::atomic<uint8_t>[]> choices_;
};

}  // namespace sluice::cupti
