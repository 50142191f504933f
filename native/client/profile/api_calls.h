// SPDX-License-Identifier: Apache-2.0
// How a profiler is told of calls of the driver and the runtime. Each library has a place for the
// hooks; the exported functions that are listed in native/api/profiling.yaml look there
// (client/profiled_*.inc) and go on to what does the work. The place is empty unless libcupti has
// been told to record calls or GPU work, so a program that does not profile pays a load and a
// branch that is not taken. Hooks are constant tables of libcupti, which stays loaded.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice::client {

// The domain of a call of cuBLAS and its like, which is one of the runtime's if it gives work.
inline constexpr uint32_t kLibraryDomain = 100;

// A call under way, on its caller's stack.
struct ApiCall {
  uint32_t domain;  // CUpti_CallbackDomain, or kLibraryDomain
  uint32_t number;  // CUPTI's, of that domain; 0: it has none
  const char* name;
  const void* params;  // a struct of its parameters, in their order
  void* result = nullptr;
  // Of the hooks.
  uint32_t correlation = 0;
  bool outermost = false;
  uint64_t start = 0;
  uint64_t data = 0;
};

struct ApiHooks {
  void (*enter)(ApiCall* call);
  void (*leave)(ApiCall* call, int result);
};

using HookSlot = std::atomic<const ApiHooks*>;

class ProfiledCall {
 public:
  ProfiledCall(const ApiHooks* hooks, uint32_t domain, uint32_t number, const char* name,
               const void* params)
      : hooks_(hooks), call_{domain, number, name, params} {
    hooks_->enter(&call_);
  }
  template <class T>
  T leave(T result) {
    call_.result = &result;
    hooks_->leave(&call_, static_cast<int>(result));
    return result;
  }
  ProfiledCall(const ProfiledCall&) = delete;
  ProfiledCall& operator=(const ProfiledCall&) = delete;

 private:
  const ApiHooks* hooks_;
  ApiCall call_;
};

// What a thread's call is known by while it runs; kept by libcuda.so.1, which marks the commands.
struct CallMark {
  uint32_t correlation = 0;  // 0: nobody profiles, or no call
  uint32_t depth = 0;        // calls within calls
  bool gave_work = false;    // a command with work has been sent
  bool pageable = false;     // the host's side of a copy is not pinned
};

}  // namespace sluice::client

// A library's place, for libcuda.so.1 to fill; at most 8 in a process.
extern "C" __attribute__((visibility("default"))) void sluice_profile_attach(
    sluice::client::HookSlot* slot);
