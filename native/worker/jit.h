// SPDX-License-Identifier: Apache-2.0
// What loading code (code.cc) and linking it (link.cc) share: the images that were uploaded, and
// the options and logs of the driver's compiler.
#pragma once

#include "process/log.h"
#include "worker/session.h"

namespace sluice::worker {

inline constexpr size_t kMaxJitOptions = 32;

// The driver keeps the addresses in here for as long as it works with them.
struct JitOptions {
  static constexpr size_t kLogBytes = 2000;
  std::vector<CUjit_option> options;
  std::vector<void*> values;
  char info[kLogBytes] = "", error[kLogBytes] = "";

  void add(CUjit_option o, uint64_t value) {
    options.push_back(o);
    values.push_back(reinterpret_cast<void*>(value));
  }
  // The u32 pairs of a frame. Options whose value is no number are the client's own.
  void add_numbers(std::span<const std::byte> pairs);
  void add_logs();
  void put_logs(Reply& reply) const;
  unsigned count() const { return static_cast<unsigned>(options.size()); }
};

// Takes a blob out of the session; false after a rejection, or with the reply's status set where
// there was no room for it.
bool take_blob(Session& s, uint64_t id, std::vector<std::byte>* bytes, Reply& reply);

// What `ask` answers on the session's thread for compiling, with the vGPU's context current.
template <class F>
CUresult on_compiler(Session& s, uint32_t device, F&& ask) {
  CUresult e = CUDA_ERROR_OUT_OF_MEMORY;
  const bool ran = s.compiler.run([&] {
    if (s.use(device)) e = ask();
  });
  if (!ran) process::log_error("there is no thread to compile on (session_pids, or memory)");
  return e;
}

}  // namespace sluice::worker
