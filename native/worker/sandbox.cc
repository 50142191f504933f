// SPDX-License-Identifier: Apache-2.0
#include "worker/sandbox.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

namespace sluice::worker {

namespace {

std::string failed(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

// A list of what is allowed would have to follow every driver release; this is the list of what a
// worker that was taken over would want, and no driver does.
const std::vector<int>& refused() {
  static const std::vector<int> calls = {
      SYS_execve,
      SYS_execveat,
      SYS_fork,
      SYS_vfork,
      SYS_ptrace,
      SYS_process_vm_readv,
      SYS_process_vm_writev,
      SYS_kexec_load,
      SYS_kexec_file_load,
      SYS_init_module,
      SYS_finit_module,
      SYS_delete_module,
      SYS_mount,
      SYS_umount2,
      SYS_pivot_root,
      SYS_chroot,
      SYS_swapon,
      SYS_swapoff,
      SYS_reboot,
      SYS_sethostname,
      SYS_setdomainname,
      SYS_unshare,
      SYS_setns,
      SYS_bpf,
      SYS_perf_event_open,
      SYS_userfaultfd,
      SYS_add_key,
      SYS_request_key,
      SYS_keyctl,
      SYS_acct,
      SYS_quotactl,
      SYS_settimeofday,
      SYS_clock_settime,
      SYS_adjtimex,
      SYS_clock_adjtime,
      SYS_syslog,
      SYS_iopl,
      SYS_ioperm,
      SYS_open_by_handle_at,
      SYS_name_to_handle_at,
      SYS_fanotify_init,
      SYS_setuid,
      SYS_setgid,
      SYS_setreuid,
      SYS_setregid,
      SYS_setresuid,
      SYS_setresgid,
      SYS_setgroups,
      SYS_capset,
      SYS_personality,
      SYS_io_uring_setup,
      SYS_io_uring_enter,
      SYS_io_uring_register,
      SYS_pidfd_getfd,
      SYS_pidfd_send_signal,
      SYS_tkill,
      SYS_rt_sigqueueinfo,
      SYS_rt_tgsigqueueinfo,
      SYS_move_pages,
      SYS_migrate_pages,
      SYS_vhangup,
      SYS_nfsservctl,
      SYS_move_mount,
      SYS_open_tree,
      SYS_fsopen,
      SYS_fsmount,
      SYS_fsconfig,
      SYS_fspick,
      SYS_mount_setattr,
      SYS_kcmp,
      SYS_lookup_dcookie,
      SYS_chown,
      SYS_fchown,
      SYS_lchown,
      SYS_fchownat,
      SYS_mknod,
      SYS_mknodat,
      SYS_link,
      SYS_linkat,
      SYS_symlink,
      SYS_symlinkat,
      SYS_setxattr,
      SYS_lsetxattr,
      SYS_fsetxattr,
      SYS_removexattr,
      SYS_chmod,
      SYS_fchmodat,
  };
  return calls;
}

const std::vector<int>& refused_without_devices() {
  static const std::vector<int> calls = {SYS_bind,     SYS_listen,   SYS_socket,    SYS_socketpair,
                                         SYS_connect,  SYS_unlink,   SYS_unlinkat,  SYS_rename,
                                         SYS_renameat, SYS_mkdir,    SYS_mkdirat,   SYS_rmdir,
                                         SYS_creat,    SYS_truncate, SYS_renameat2, SYS_ioctl};
  return calls;
}

// Calls that are refused for what they are given: a bit of one argument, or another process than
// this.
struct Condition {
  int call;
  size_t argument;
  uint32_t mask;   // refused when one of these bits is set …
  uint32_t equal;  // … or, without a mask, when the argument is anything else
};

std::vector<Condition> conditions(bool software) {
  const auto self = static_cast<uint32_t>(getpid());
  // Workers share a user, so the kernel would let them signal one another.
  std::vector<Condition> all = {{SYS_kill, 0, 0, self}, {SYS_tgkill, 0, 0, self}};
  constexpr uint32_t kWriting = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
  if (software) {
    all.push_back({SYS_open, 1, kWriting, 0});
    all.push_back({SYS_openat, 2, kWriting, 0});
  }
  return all;
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

bool restrict_system_calls(bool software, std::string* error) {
  keep_to_chosen_ports();
  std::vector<int> calls = refused();
  if (software)
    calls.insert(calls.end(), refused_without_devices().begin(), refused_without_devices().end());
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
  for (const Condition& c : conditions(software)) {
    f.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(c.call), 0, 4));
    load(offsetof(seccomp_data, args) + c.argument * sizeof(uint64_t));
    if (c.mask)
      f.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, c.mask, 0, 1));
    else
      f.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, c.equal, 1, 0));
    f.push_back(deny);
    load(offsetof(seccomp_data, nr));
  }
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

}  // namespace sluice::worker
