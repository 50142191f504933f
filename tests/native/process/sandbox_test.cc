// SPDX-License-Identifier: Apache-2.0
// What a confined worker may still do. Each question is asked by a child process that confines
// itself, since there is no way back.
#include "process/sandbox.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <pthread.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>
#include <vector>

namespace sluice::process {
namespace {

constexpr int kNotConfined = 255;

// How the child ended: what `ask` returned (an errno, 0 for done), or -signal.
int confined(bool software, const std::function<int()>& ask, bool rdma = false) {
  const pid_t child = fork();
  if (child == 0) {
    std::string error;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        !restrict_system_calls(software, rdma, &error))
      _exit(kNotConfined);
    _exit(ask());
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
int result(long r) { return r < 0 ? errno : 0; }

class Confined : public ::testing::TestWithParam<bool> {
 protected:
  static int ask(const std::function<int()>& f) { return confined(GetParam(), f); }
};

TEST_P(Confined, NoProgramsAndNoProcesses) {
  EXPECT_EQ(ask([] {
              const char* argv[] = {"/bin/true", nullptr};
              return result(execve(argv[0], const_cast<char**>(argv), nullptr));
            }),
            EPERM);
  EXPECT_EQ(ask([] { return result(syscall(SYS_fork)); }), EPERM);
  EXPECT_EQ(ask([] { return result(syscall(SYS_vfork)); }), EPERM);
  EXPECT_EQ(
      ask([] { return result(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)); }),
      EPERM);
  EXPECT_EQ(ask([] { return result(syscall(SYS_clone3, nullptr, 0)); }), ENOSYS);
}

TEST_P(Confined, ThreadsStillStart) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer starts no threads in a forked child";
#endif
  EXPECT_EQ(ask([] {
              pthread_t t;
              if (const int e =
                      pthread_create(&t, nullptr, [](void*) -> void* { return nullptr; }, nullptr))
                return e;
              return pthread_join(t, nullptr);
            }),
            0);
}

TEST_P(Confined, OtherProcessesAreOutOfReach) {
  const pid_t parent = getpid();
  EXPECT_EQ(ask([=] { return result(kill(parent, 0)); }), EPERM);
  EXPECT_EQ(ask([=] { return result(kill(0, 0)); }), EPERM);
  EXPECT_EQ(ask([=] { return result(kill(-1, 0)); }), EPERM);
  EXPECT_EQ(ask([=] { return result(syscall(SYS_tgkill, parent, parent, 0)); }), EPERM);
  EXPECT_EQ(ask([=] { return result(syscall(SYS_tkill, parent, 0)); }), EPERM);
  EXPECT_EQ(ask([=] { return result(ptrace(PTRACE_SEIZE, parent, nullptr, nullptr)); }), EPERM);
  EXPECT_EQ(
      ask([=] { return result(syscall(SYS_process_vm_readv, parent, nullptr, 0, nullptr, 0, 0)); }),
      EPERM);
  EXPECT_EQ(ask([=] { return result(syscall(SYS_pidfd_getfd, 0, 0, 0)); }), EPERM);
  EXPECT_EQ(ask([] { return result(kill(getpid(), 0)); }), 0) << "its own signals are its own";
  EXPECT_EQ(ask([] { return result(raise(0)); }), 0);
}

// A signal of its choice to a process of its choice, which the kernel sends for it.
TEST_P(Confined, NoFileSendsSignalsToOthers) {
  const pid_t parent = getpid();
  const auto on_pipe = [](const std::function<long(int)>& f) {
    return [=] {
      int ends[2];
      if (pipe(ends) != 0) return errno;
      return result(f(ends[0]));
    };
  };
  EXPECT_EQ(ask(on_pipe([=](int fd) { return fcntl(fd, F_SETOWN, parent); })), EPERM);
  EXPECT_EQ(ask(on_pipe([=](int fd) {
              const f_owner_ex owner{F_OWNER_PID, parent};
              return fcntl(fd, F_SETOWN_EX, &owner);
            })),
            EPERM);
  EXPECT_EQ(ask(on_pipe([](int fd) { return fcntl(fd, F_SETSIG, SIGKILL); })), EPERM);
  EXPECT_EQ(ask(on_pipe([](int fd) { return fcntl(fd, F_SETFL, O_ASYNC | O_NONBLOCK); })), EPERM);
  EXPECT_EQ(ask(on_pipe([](int fd) { return fcntl(fd, F_SETLEASE, F_RDLCK); })), EPERM);
  EXPECT_EQ(ask(on_pipe([](int fd) { return fcntl(fd, F_NOTIFY, DN_ACCESS); })), EPERM);
  EXPECT_EQ(ask(on_pipe([](int fd) {
              int on = 1;
              return ioctl(fd, FIOASYNC, &on);
            })),
            EPERM);
  EXPECT_EQ(ask(on_pipe([](int fd) { return ioctl(fd, TIOCSTI, "x"); })), EPERM);
  EXPECT_EQ(ask(on_pipe([](int fd) { return fcntl(fd, F_SETFL, O_NONBLOCK); })), 0);
  EXPECT_EQ(ask(on_pipe([](int fd) { return fcntl(fd, F_SETFD, FD_CLOEXEC); })), 0);
  EXPECT_EQ(ask(on_pipe([](int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 3) < 0 ? -1 : 0; })), 0);
}

struct SchedAttr {  // sched_setattr(2), which older headers lack
  uint32_t size = 48, policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0, deadline = 0, period = 0;
};

// What these change of a process, and whether it is another's.
TEST_P(Confined, OthersLimitsAndPlacesAreTheirs) {
  struct Question {
    const char* what;
    std::function<long(pid_t)> ask;
  };
  const std::vector<Question> questions = {
      {"prlimit",
       [](pid_t pid) {
         rlimit now{};
         const long e = syscall(SYS_prlimit64, pid, RLIMIT_NOFILE, nullptr, &now);
         return e != 0 ? e : syscall(SYS_prlimit64, pid, RLIMIT_NOFILE, &now, nullptr);
       }},
      {"setpriority", [](pid_t pid) { return syscall(SYS_setpriority, PRIO_PROCESS, pid, 19); }},
      {"sched_setscheduler",
       [](pid_t pid) {
         const sched_param none{};
         return syscall(SYS_sched_setscheduler, pid, SCHED_BATCH, &none);
       }},
      {"sched_setparam",
       [](pid_t pid) {
         const sched_param none{};
         return syscall(SYS_sched_setparam, pid, &none);
       }},
      {"sched_setattr",
       [](pid_t pid) {
         SchedAttr attributes;
         return syscall(SYS_sched_setattr, pid, &attributes, 0);
       }},
      {"sched_setaffinity",
       [](pid_t pid) {
         cpu_set_t set;
         CPU_ZERO(&set);
         if (sched_getaffinity(0, sizeof set, &set) != 0) return -1L;
         return syscall(SYS_sched_setaffinity, pid, sizeof set, &set);
       }},
      {"ioprio_set", [](pid_t pid) { return syscall(SYS_ioprio_set, 1, pid, 0x4007); }},
  };
  const pid_t parent = getpid();
  for (const Question& q : questions) {
    SCOPED_TRACE(q.what);
    EXPECT_EQ(ask([&] { return result(q.ask(parent)); }), EPERM);
    EXPECT_EQ(ask([&] { return result(q.ask(0)); }), 0) << "its own thread's are its own";
    EXPECT_EQ(ask([&] { return result(q.ask(getpid())); }), 0) << "and its own process's";
  }
  for (int all : {PRIO_PGRP, PRIO_USER})
    EXPECT_EQ(ask([=] { return result(syscall(SYS_setpriority, all, 0, 19)); }), EPERM);
  for (int all : {2, 3})
    EXPECT_EQ(ask([=] { return result(syscall(SYS_ioprio_set, all, 0, 0x4007)); }), EPERM);
}

TEST_P(Confined, NothingIsSharedByNameOrNumber) {
  const pid_t parent = getpid();
  EXPECT_EQ(ask([] { return result(shmget(42, 4096, IPC_CREAT | 0600)); }), EPERM);
  EXPECT_EQ(ask([] { return result(shmctl(0, IPC_RMID, nullptr)); }), EPERM);
  EXPECT_EQ(ask([] { return result(msgget(42, IPC_CREAT | 0600)); }), EPERM);
  EXPECT_EQ(ask([] { return result(semget(42, 1, IPC_CREAT | 0600)); }), EPERM);
  EXPECT_EQ(ask([] { return result(syscall(SYS_mq_open, "x", O_RDONLY)); }), EPERM);
  EXPECT_EQ(ask([=] { return result(syscall(434, parent, 0)); }), EPERM) << "pidfd_open";
  EXPECT_EQ(ask([] { return result(syscall(440, -1, nullptr, 0, 0, 0)); }), EPERM);
  EXPECT_EQ(ask([] { return result(syscall(448, -1, 0)); }), EPERM) << "process_mrelease";
  EXPECT_EQ(ask([=] { return result(prctl(62, 2, parent, 0, 0)); }), EPERM) << "PR_SCHED_CORE";
  EXPECT_EQ(ask([] { return result(prctl(PR_SET_NAME, "worker")); }), 0);
}

TEST_P(Confined, NoNamespacesMountsModulesOrRings) {
  EXPECT_EQ(ask([] { return result(syscall(SYS_unshare, 0)); }), EPERM);
  EXPECT_EQ(ask([] { return result(syscall(SYS_setns, 0, 0)); }), EPERM);
  EXPECT_EQ(ask([] { return result(syscall(SYS_mount, nullptr, nullptr, nullptr, 0, nullptr)); }),
            EPERM);
  EXPECT_EQ(ask([] { return result(syscall(SYS_bpf, 0, nullptr, 0)); }), EPERM);
  EXPECT_EQ(ask([] { return result(syscall(SYS_io_uring_setup, 1, nullptr)); }), EPERM);
  EXPECT_EQ(ask([] { return result(syscall(SYS_userfaultfd, 0)); }), EPERM);
  EXPECT_EQ(ask([] { return result(syscall(SYS_setresuid, 0, 0, 0)); }), EPERM);
  EXPECT_EQ(ask([] { return result(syscall(SYS_chmod, "/tmp", 0777)); }), EPERM);
}

int listen_on(uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(port);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0) return errno;
  return listen(fd, 1) == 0 ? 0 : errno;
}

// NCCL needs ports, and takes those that the kernel gives it.
TEST_P(Confined, ListensOnlyWhereTheKernelSays) {
  const bool software = GetParam();
  EXPECT_EQ(ask([] { return listen_on(0); }), software ? EPERM : 0);
  if (software) return;
  if (syscall(444, nullptr, 0, 1) < 4) GTEST_SKIP() << "this kernel cannot tell ports";
  EXPECT_EQ(ask([] { return listen_on(45999); }), EACCES);
}

TEST_P(Confined, AnotherArchitecturesNumbersKill) {
  EXPECT_EQ(ask([] { return result(syscall(0x40000000 | SYS_getpid)); }), -SIGSYS);
}

TEST_P(Confined, WhatAWorkerNeedsIsThere) {
  EXPECT_EQ(ask([] {
              const int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
              if (fd < 0) return errno;
              char c;
              if (read(fd, &c, 1) != 1) return errno;
              void* p =
                  mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
              if (p == MAP_FAILED) return errno;
              const int memory = memfd_create("x", 0);
              if (memory < 0) return errno;
              return result(ftruncate(memory, 4096));
            }),
            0);
}

INSTANTIATE_TEST_SUITE_P(Gpu, Confined, ::testing::Bool(),
                         [](const auto& p) { return p.param ? "software" : "nvidia"; });

TEST(SoftwareGpu, NeedsNoDevicesFilesOrSockets) {
  EXPECT_EQ(confined(true, [] { return result(open("/dev/null", O_RDWR)); }), EPERM);
  EXPECT_EQ(confined(true, [] { return result(open("/dev/null", O_WRONLY)); }), EPERM);
  EXPECT_EQ(
      confined(true, [] { return result(syscall(SYS_open, "/dev/null", O_RDONLY | O_CREAT)); }),
      EPERM);
  EXPECT_EQ(confined(true, [] { return result(syscall(SYS_open, "/dev/null", O_RDONLY)); }), 0);
  EXPECT_EQ(confined(true, [] { return result(syscall(SYS_openat2, 0, nullptr, nullptr, 0)); }),
            ENOSYS);
  EXPECT_EQ(confined(true,
                     [] {
                       int n = 0;
                       return result(ioctl(0, FIONREAD, &n));
                     }),
            EPERM);
  EXPECT_EQ(confined(true, [] { return result(socket(AF_UNIX, SOCK_STREAM, 0)); }), EPERM);
  EXPECT_EQ(confined(true, [] { return result(unlink("/nothing")); }), EPERM);
}

TEST(NvidiaDriver, KeepsItsDevices) {
  EXPECT_EQ(confined(false, [] { return result(open("/dev/null", O_RDWR)); }), 0);
  EXPECT_EQ(confined(false, [] { return result(ioctl(-1, FIONREAD, nullptr)); }), EBADF);
  EXPECT_EQ(confined(false, [] { return result(ioctl(-1, _IOWR('F', 0x2a, int), nullptr)); }),
            EBADF);
  EXPECT_EQ(confined(false, [] { return result(ioctl(-1, FIOSETOWN, nullptr)); }), EPERM);
  EXPECT_EQ(confined(false, [] { return result(ioctl(-1, SIOCSPGRP, nullptr)); }), EPERM);
}

TEST(ConfinedWithRdma, TheVerbsRequestGetsThroughAndNoOther) {
  const unsigned long verbs = RDMA_VERBS_IOCTL;
  const auto ask = [=](unsigned long request) {
    return [=] { return result(ioctl(-1, request, nullptr)); };
  };
  EXPECT_EQ(confined(true, ask(verbs)), EPERM);
  EXPECT_EQ(confined(true, ask(verbs), true), EBADF);  // the kernel has seen it
  EXPECT_EQ(confined(true, ask(FIONREAD), true), EPERM);
  EXPECT_EQ(confined(true, ask(TIOCSTI), true), EPERM);
  EXPECT_EQ(confined(false, ask(TIOCSTI), true), EPERM);
  EXPECT_EQ(confined(false, ask(verbs)), EBADF);
}

TEST(Privileges, AreGoneForGood) {
  if (geteuid() != 0) GTEST_SKIP() << "only root has something to drop";
  const pid_t child = fork();
  if (child == 0) {
    std::string error;
    if (!drop_privileges(65534, 65534, &error)) _exit(1);
    if (getuid() != 65534 || geteuid() != 65534 || getgid() != 65534 || getgroups(0, nullptr) != 1)
      _exit(2);
    if (setresuid(0, 0, 0) == 0) _exit(3);
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &header, data) != 0) _exit(4);
    if (data[0].effective | data[0].permitted | data[0].inheritable | data[1].effective |
        data[1].permitted)
      _exit(5);
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1 || prctl(PR_GET_DUMPABLE) != 0) _exit(6);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace sluice::process
