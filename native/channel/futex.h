// SPDX-License-Identifier: Apache-2.0
// Sleeping and waking on a 32-bit word, in one process or across processes that map the same file,
// and the pause of a spin loop.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace sluice::channel {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Between the rounds of a spin. With fewer cores than the threads of a copy, whoever spins keeps
// one of those that work from running: it steps back for them, and loses nothing where all have a
// core.
inline void spin_round() {
  static const bool few_cores = sysconf(_SC_NPROCESSORS_ONLN) < 4;
  if (few_cores) sched_yield();
}

inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

// Returns when woken, when the word no longer holds `expected`, on a signal, or after timeout_ns (0
// = never).
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, uint64_t timeout_ns = 0) {
  timespec t{static_cast<time_t>(timeout_ns / 1000000000u),
             static_cast<long>(timeout_ns % 1000000000u)};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, expected,
          timeout_ns ? &t : nullptr, nullptr, 0);
}

inline void futex_wake(std::atomic<uint32_t>& word, int count = 1) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, count, nullptr, nullptr, 0);
}

inline void sleep_ns(uint64_t ns) {
  timespec t{static_cast<time_t>(ns / 1000000000u), static_cast<long>(ns % 1000000000u)};
  nanosleep(&t, nullptr);
}

}  // namespace sluice::channel
