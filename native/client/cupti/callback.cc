// SPDX-License-Identifier: Apache-2.0
// The exported Callback API: of calls of the runtime and the driver. Of resources, synchronisation,
// NVTX and states nothing is told, and who asks for them hears so, but for contexts (calls.cc).
#include "client/cupti/activities.h"
#include "client/cupti/calls.h"
#include "client/cupti/session.h"

using namespace sluice::cupti;

namespace {

struct Row {
  uint32_t domain, number;
  const char* name;
};

constexpr uint32_t driver = kDriverApi, runtime = kRuntimeApi;
const Row kRows[] = {
#define SLUICE_CUPTI_CALL(library, number, name) {library, number, #name},
#if SLUICE_CUPTI_MAJOR >= 13
#include "client/cupti_calls13.inc"
#else
#include "client/cupti_calls12.inc"
#endif
#undef SLUICE_CUPTI_CALL
};

int told(int result) {
  if (result == kNotSupported)
    say_once(
        "a profiler asked for callbacks of other things than calls, which Sluice does not make");
  return result;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int cuptiSubscribe(void** subscriber, Callback callback, void* data) {
  return Calls::get().subscribe(subscriber, callback, data);
}
int cuptiUnsubscribe(void* subscriber) { return Calls::get().unsubscribe(subscriber); }

int cuptiEnableCallback(uint32_t enable, void* subscriber, uint32_t domain, uint32_t number) {
  return told(Calls::get().enable(enable, subscriber, domain, number));
}
int cuptiEnableDomain(uint32_t enable, void* subscriber, uint32_t domain) {
  return told(Calls::get().enable_domain(enable, subscriber, domain));
}
int cuptiEnableAllDomains(uint32_t enable, void* subscriber) {
  const int e = Calls::get().enable_domain(enable, subscriber, kDriverApi);
  return e == kSuccess ? Calls::get().enable_domain(enable, subscriber, kRuntimeApi) : e;
}
int cuptiGetCallbackState(uint32_t* enable, void* subscriber, uint32_t domain, uint32_t number) {
  bool on = false;
  const int e = Calls::get().callback_state(enable ? &on : nullptr, subscriber, domain, number);
  if (e == kSuccess) *enable = on;
  return e;
}

int cuptiGetCallbackName(uint32_t domain, uint32_t number, const char** name) {
  if (!name) return kInvalidParameter;
  for (const Row& row : kRows)
    if (row.domain == domain && row.number == number) {
      *name = row.name;
      return kSuccess;
    }
  return kInvalidParameter;
}

int cuptiFinalize() {
  Activities::get().disable_all();
  return kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
