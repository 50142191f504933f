// SPDX-License-Identifier: Apache-2.0
#include "process/sandbox.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "process/log.h"

namespace sluice::process {

namespace {

std::string failed(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

// A list of what is allowed would have to follow every driver release; this is the list of what a
// worker that was taken over would want, and no driver does.
const std::vector<int>& refused() {
  static const std::vector<int> calls = {
      SYS_execve, SYS_execveat, SYS_fork, SYS_vfork, SYS_ptrace, SYS_process_vm_readv,
      SYS_process_vm_writev, SYS_kexec_load, SYS_kexec_file_load, SYS_init_module, SYS_finit_module,
      SYS_delete_module, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_swapon,
      SYS_swapoff, SYS_reboot, SYS_sethostname, SYS_setdomainname, SYS_unshare, SYS_setns, SYS_bpf,
      SYS_perf_event_open, SYS_userfaultfd, SYS_add_key, SYS_request_key, SYS_keyctl, SYS_acct,
      SYS_quotactl, SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime,
      SYS_syslog, SYS_iopl, SYS_ioperm, SYS_open_by_handle_at, SYS_name_to_handle_at,
      SYS_fanotify_init, SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid,
      SYS_setresgid, SYS_setgroups, SYS_capset, SYS_personality, SYS_io_uring_setup,
      SYS_io_uring_enter, SYS_io_uring_register, SYS_pidfd_getfd, SYS_pidfd_send_signal, SYS_tkill,
      SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_move_pages, SYS_migrate_pages, SYS_vhangup,
      SYS_nfsservctl, SYS_move_mount, SYS_open_tree, SYS_fsopen, SYS_fsmount, SYS_fsconfig,
      SYS_fspick, SYS_mount_setattr, SYS_kcmp, SYS_lookup_dcookie, SYS_chown, SYS_fchown,
      SYS_lchown, SYS_fchownat, SYS_mknod, SYS_mknodat, SYS_link, SYS_linkat, SYS_symlink,
      SYS_symlinkat, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr, SYS_chmod,
      SYS_fchmodat,
      // What reaches others by a name or number that both know.
      SYS_shmget, SYS_shmat, SYS_shmctl, SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl, SYS_semget,
      SYS_semop, SYS_semtimedop, SYS_semctl, SYS_mq_open, SYS_mq_unlink, SYS_get_robust_list,
      SYS_modify_ldt,
      // Numbers that older headers lack.
      434,  // pidfd_open
      440,  // process_madvise
      443,  // quotactl_fd
      448,  // process_mrelease
      452,  // fchmodat2
      460,  // lsm_set_self_attr
      463,  // setxattrat
      466,  // removexattrat
  };
  return calls;
}

const std::vector<int>& refused_without_devices() {
  static const std::vector<int> calls = {SYS_bind,     SYS_listen,   SYS_socket,   SYS_socketpair,
                                         SYS_connect,  SYS_unlink,   SYS_unlinkat, SYS_rename,
                                         SYS_renameat, SYS_mkdir,    SYS_mkdirat,  SYS_rmdir,
                                         SYS_creat,    SYS_truncate, SYS_renameat2};
  return calls;
}

// What one argument says, of which the kernel reads 32 bits in all calls below.
struct Test {
  enum class Is { kAnyBitOf, kEqualTo, kNeitherOf };
  size_t argument;
  Is is;
  uint32_t value, other = value;

  size_t instructions() const { return is == Is::kNeitherOf ? 3 : 2; }
};

// A call that is refused for what it is given: when all tests hold.
struct Refusal {
  int call;
  std::vector<Test> tests;
};

// Sessions have users of their own, but where the server is not root they share one, and then the
// kernel would let them do all this to one another.
std::vector<Refusal> others() {
  using Is = Test::Is;
  const auto self = static_cast<uint32_t>(getpid());
  constexpr uint32_t kIoprioWhoProcess = 1, kFdNotify = 0x8901, kSocketOwner = 0x8902;
  constexpr uint32_t kFileAsync = 0x5452, kTerminalInput = 0x5412, kSchedCore = 62;
  std::vector<Refusal> all = {{SYS_kill, {{0, Is::kNeitherOf, self}}},
                              {SYS_tgkill, {{0, Is::kNeitherOf, self}}}};
  // Threads set these for themselves (0).
  for (int call : {SYS_prlimit64, SYS_sched_setscheduler, SYS_sched_setparam, SYS_sched_setattr,
                   SYS_sched_setaffinity})
    all.push_back({call, {{0, Is::kNeitherOf, 0, self}}});
  all.push_back({SYS_setpriority, {{0, Is::kNeitherOf, PRIO_PROCESS}}});
  all.push_back({SYS_setpriority, {{1, Is::kNeitherOf, 0, self}}});
  all.push_back({SYS_ioprio_set, {{0, Is::kNeitherOf, kIoprioWhoProcess}}});
  all.push_back({SYS_ioprio_set, {{1, Is::kNeitherOf, 0, self}}});
  all.push_back({SYS_prctl, {{0, Is::kEqualTo, kSchedCore}}});
  // A signal of the caller's choice to a process of its choice, once there is something to read.
  for (uint32_t command : {F_SETOWN, F_SETOWN_EX, F_SETSIG, F_SETLEASE, F_NOTIFY})
    all.push_back({SYS_fcntl, {{1, Is::kEqualTo, command}}});
  all.push_back({SYS_fcntl, {{1, Is::kEqualTo, F_SETFL}, {2, Is::kAnyBitOf, O_ASYNC}}});
  for (uint32_t request : {kFileAsync, kFdNotify, kSocketOwner, kTerminalInput})
    all.push_back({SYS_ioctl, {{1, Is::kEqualTo, request}}});
  return all;
}

std::vector<Refusal> refusals(bool software, bool rdma) {
  std::vector<Refusal> all = others();
  constexpr uint32_t kWriting = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
  // The one request of an RDMA device's file, which was opened before.
  constexpr uint32_t kVerbs = 0xc0181b01;  // RDMA_VERBS_IOCTL
  if (software && rdma) all.push_back({SYS_ioctl, {{1, Test::Is::kNeitherOf, kVerbs, kVerbs}}});
  if (software) {
    all.push_back({SYS_open, {{1, Test::Is::kAnyBitOf, kWriting}}});
    all.push_back({SYS_openat, {{2, Test::Is::kAnyBitOf, kWriting}}});
  }
  return all;
}

// Leaves the call's number in the accumulator, as it was found there.
void append(const Refusal& refusal, const sock_filter& deny, std::vector<sock_filter>* f) {
  using Is = Test::Is;
  std::vector<sock_filter> asked;
  const auto deny_at = [&] {  // counted in instructions of this refusal
    size_t n = 0;
    for (const Test& t : refusal.tests) n += t.instructions();
    return n;
  }();
  for (const Test& t : refusal.tests) {
    asked.push_back(BPF_STMT(
        BPF_LD | BPF_W | BPF_ABS,
        static_cast<uint32_t>(offsetof(seccomp_data, args) + t.argument * sizeof(uint64_t))));
    const auto compare = [&](uint32_t value) {
      const auto past = static_cast<uint8_t>(deny_at - asked.size());  // over the denial
      const bool leaves = t.is == Is::kNeitherOf;  // when it finds the value, or when it does not
      const int how = t.is == Is::kAnyBitOf ? BPF_JSET : BPF_JEQ;
      asked.push_back(BPF_JUMP(static_cast<uint16_t>(BPF_JMP | how | BPF_K), value,
                               leaves ? past : uint8_t{0}, leaves ? uint8_t{0} : past));
    };
    compare(t.value);
    if (t.is == Is::kNeitherOf) compare(t.other);
  }
  asked.push_back(deny);
  asked.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  f->push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(refusal.call), 0,
                        static_cast<uint8_t>(asked.size())));
  f->insert(f->end(), asked.begin(), asked.end());
}

// NCCL listens on ports that the kernel chooses. Others are closed where the kernel can tell (Linux
// 6.7): a worker that was taken over must not wait in a service's place. The numbers and structs
// are Landlock's, which older headers lack.
void keep_to_chosen_ports() {
  constexpr long kCreate = 444, kAddRule = 445, kRestrict = 446;
  constexpr uint64_t kBindTcp = 1, kNetPort = 2, kVersion = 1;
  struct Rules {
    uint64_t files, net;
  } const rules{0, kBindTcp};
  struct Port {
    uint64_t allowed, port;
  } const chosen{kBindTcp, 0};
  if (syscall(kCreate, nullptr, 0, kVersion) < 4) return;
  const int fd = static_cast<int>(syscall(kCreate, &rules, sizeof rules, 0));
  if (fd < 0) return;
  if (syscall(kAddRule, fd, kNetPort, &chosen, 0) == 0) syscall(kRestrict, fd, 0);
  close(fd);
}

}  // namespace

void allow_locked_memory() {
  constexpr rlim_t kBytes = 64 << 20;
  const rlimit wanted{kBytes, kBytes};
  rlimit had{};
  if (getrlimit(RLIMIT_MEMLOCK, &had) != 0 || had.rlim_cur >= kBytes) return;
  if (setrlimit(RLIMIT_MEMLOCK, &wanted) != 0) log_info("RLIMIT_MEMLOCK stays as it is");
}

bool drop_privileges(uint32_t uid, uint32_t gid, std::string* error) {
  // Capabilities that exec could bring back are of no use either.
  for (int cap = 0; cap <= 63; ++cap)
    if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0 && errno == EPERM) break;
  if (geteuid() == 0 && uid != 0) {
    const gid_t group = gid;
    if (setgroups(1, &group) != 0 || setresgid(gid, gid, gid) != 0 ||
        setresuid(uid, uid, uid) != 0) {
      *error = failed("becoming the worker's user");
      return false;
    }
  }
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  if (syscall(SYS_capset, &header, none) != 0) {
    *error = failed("dropping capabilities");
    return false;
  }
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    *error = failed("setting no_new_privs");
    return false;
  }
  prctl(PR_SET_DUMPABLE, 0);
  return true;
}

bool restrict_system_calls(bool software, bool rdma, std::string* error) {
  keep_to_chosen_ports();
  std::vector<int> calls = refused();
  if (software)
    calls.insert(calls.end(), refused_without_devices().begin(), refused_without_devices().end());
  if (software && !rdma) calls.push_back(SYS_ioctl);
  std::vector<sock_filter> f;
  const auto load = [&](size_t offset) {
    f.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)));
  };
  const sock_filter deny = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
  const sock_filter kill = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  load(offsetof(seccomp_data, arch));
  f.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0));
  f.push_back(kill);
  load(offsetof(seccomp_data, nr));
  // The x32 numbers are the same calls under another name.
  f.push_back(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1));
  f.push_back(kill);
  for (int nr : calls) {
    f.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(nr), 0, 1));
    f.push_back(deny);
  }
  for (const Refusal& refusal : refusals(software, rdma)) append(refusal, deny, &f);
  // Threads yes, processes no: clone without CLONE_THREAD. clone3 and openat2 hide their flags, so
  // they are said not to exist and callers fall back to the older ones.
  f.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1));
  f.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS));
  f.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1));
  f.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS));
  f.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4));
  load(offsetof(seccomp_data, args[0]));
  f.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0));
  f.push_back(deny);
  load(offsetof(seccomp_data, nr));
  f.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(f.size()), f.data()};
  // Every thread that the driver has started is covered too.
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) {
    *error = failed("installing the system call filter");
    return false;
  }
  return true;
}

}  // namespace sluice::process
