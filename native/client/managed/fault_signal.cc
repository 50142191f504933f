// SPDX-License-Identifier: Apache-2.0
#include "client/managed/fault_signal.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>

#include "client/core/session.h"
#include "client/managed/interposition.h"

namespace sluice::client {

namespace {

std::mutex g_mutex;
bool g_installed = false;
// The program's own action, and behind it those that it had when others came without our knowing:
// whoever set these may have kept ours as what was there before, and calls it in the end.
struct Actions {
  static constexpr unsigned kMost = 4;
  unsigned count = 0;
  struct sigaction all[kMost];
};
// Two places, so that a handler that reads one never sees half of it.
Actions g_actions[2];
std::atomic<unsigned> g_current{0};
// The fault that this thread has passed on, from where on its stack, and to which of the actions.
struct Passed {
  const void *context = nullptr, *frame = nullptr;
  unsigned to = 0;
};
thread_local Passed t_passed;

void handle(int signal, siginfo_t* info, void* context);

bool install(int flags) {
  struct sigaction ours {};
  ours.sa_sigaction = handle;
  // Not blocked while it runs: the program's handler may touch managed memory, too.
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART | (flags & SA_ONSTACK);
  return real_calls().sigaction(SIGSEGV, &ours, nullptr) == 0;
}

void set_program_action(const struct sigaction& action, bool beside_those_before = false) {
  const unsigned now = g_current.load(std::memory_order_relaxed), next = now ^ 1;
  g_actions[next] = g_actions[now];
  Actions& all = g_actions[next];
  if (beside_those_before) {
    std::copy_backward(all.all, all.all + Actions::kMost - 1, all.all + Actions::kMost);
    if (all.count < Actions::kMost) ++all.count;
  }
  all.all[0] = action;
  all.count = std::max(all.count, 1u);
  g_current.store(next, std::memory_order_release);
}

// Ends the process as the signal does without a handler.
void end_by_default(int signal, const siginfo_t* info) {
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  real_calls().sigaction(signal, &plain, nullptr);
  // A fault comes again when this returns; a signal that was sent does not.
  if (info->si_code <= 0) syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal);
}

// As the kernel would have called it. Called by whom it has passed this on to, it goes on with who
// was there before. A handler may have left by a jump: then a later fault is at the same place.
[[gnu::noinline]] void pass_on(int signal, siginfo_t* info, void* context) {
  const void* const frame = __builtin_frame_address(0);
  const Passed before_this = t_passed;
  const bool again = before_this.context == context && frame < before_this.frame;
  const unsigned which = again ? before_this.to + 1 : 0;
  const Actions& all = g_actions[g_current.load(std::memory_order_acquire)];
  if (which >= all.count) return end_by_default(signal, info);
  const struct sigaction action = all.all[which];
  const bool sent = info->si_code <= 0;
  const bool takes_three = action.sa_flags & SA_SIGINFO;
  if (!takes_three && action.sa_handler == SIG_IGN && sent) return;
  if (!takes_three && (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN))
    return end_by_default(signal, info);
  if (which == 0 && action.sa_flags & SA_RESETHAND) {
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    set_program_action(plain);
  }
  sigset_t blocked = action.sa_mask, before;
  sigdelset(&blocked, SIGSEGV);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  t_passed = {context, frame, which};
  if (takes_three)
    action.sa_sigaction(signal, info, context);
  else
    action.sa_handler(signal);
  t_passed = before_this;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

struct Touch {
  ManagedMemory* managed;
  uint64_t address;
  bool write, done;
};

void do_touch(Touch* touch) { touch->done = touch->managed->touch(touch->address, touch->write); }

// On a stack of its own: alternate stacks are small, and what is needed here is a round trip's.
void touch_on_own_stack(Touch* touch) {
  constexpr size_t kBytes = 256 << 10;
  void* stack =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return do_touch(touch);
  void* top = static_cast<char*>(stack) + kBytes;
  void (*call)(Touch*) = do_touch;
  asm volatile(
      "movq %%rsp, %%rbx\n\t"
      "movq %[top], %%rsp\n\t"
      "callq *%[call]\n\t"
      "movq %%rbx, %%rsp\n\t"
      : [call] "+a"(call), "+D"(touch)
      : [top] "d"(top)
      : "rbx", "rcx", "rsi", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
        "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",
        "xmm15", "cc", "memory");
  munmap(stack, kBytes);
}

void handle(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  Session* s = Session::get();
  const auto address = reinterpret_cast<uint64_t>(info->si_addr);
  if (s && info->si_code == SEGV_ACCERR && s->managed.may_contain(address)) {
    constexpr uint64_t kWrite = 2;  // of the page fault's error code
    const auto* at = static_cast<const ucontext_t*>(context);
    Touch touch{&s->managed, address,
                (static_cast<uint64_t>(at->uc_mcontext.gregs[REG_ERR]) & kWrite) != 0, false};
    stack_t stack{};
    if (sigaltstack(nullptr, &stack) == 0 && stack.ss_flags & SS_ONSTACK)
      touch_on_own_stack(&touch);
    else
      do_touch(&touch);
    errno = error;
    if (touch.done) return;
  }
  pass_on(signal, info, context);
  errno = error;
}

}  // namespace

void watch_faults() {
  std::lock_guard lock(g_mutex);
  interpose();
  struct sigaction had {};
  if (real_calls().sigaction(SIGSEGV, nullptr, &had) != 0) return;
  // Else somebody has set another whose calls are not led to ours, as it has just been loaded.
  if (g_installed && had.sa_sigaction == handle) return;
  set_program_action(had, g_installed);
  const bool first = !g_installed;
  g_installed = install(had.sa_flags);
  if (!first) return;
  // A thread that has it blocked would end the process at its first touch.
  sigset_t own;
  sigemptyset(&own);
  sigaddset(&own, SIGSEGV);
  real_calls().pthread_sigmask(SIG_UNBLOCK, &own, nullptr);
}

int program_sigaction(const struct sigaction* wanted, struct sigaction* had) {
  std::lock_guard lock(g_mutex);
  if (!g_installed) return real_calls().sigaction(SIGSEGV, wanted, had);
  const struct sigaction before = g_actions[g_current.load(std::memory_order_relaxed)].all[0];
  if (wanted) {
    const struct sigaction next = *wanted;  // may be the same place as `had`
    set_program_action(next);
    if ((next.sa_flags ^ before.sa_flags) & SA_ONSTACK) install(next.sa_flags);
  }
  if (had) *had = before;
  return 0;
}

}  // namespace sluice::client
