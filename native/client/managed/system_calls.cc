// SPDX-License-Identifier: Apache-2.0
// Calls that have the kernel read or write the program's memory: what of it is managed is made
// accessible first. Where a launch of another thread takes pages away meanwhile the kernel says
// EFAULT, has moved nothing, and is asked again.
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "client/core/session.h"
#include "client/managed/interposition.h"

namespace sluice::client {

namespace {

constexpr int kMostTries = 1000;

struct Buffer {
  const void* at;
  size_t bytes;
  bool written;  // by the kernel
};

// Whether it touches managed memory.
bool prepare(const Buffer& b) {
  Session* s = Session::get();
  const auto from = reinterpret_cast<uint64_t>(b.at);
  if (!s || b.bytes == 0 || !s->managed.may_contain(from)) return false;
  const int error = errno;
  s->managed.prepare(from, b.bytes, b.written);
  errno = error;
  return true;
}

bool prepare(const iovec* parts, size_t count, bool written) {
  bool some = false;
  for (size_t i = 0; parts && i < count; ++i)
    some |= prepare(Buffer{parts[i].iov_base, parts[i].iov_len, written});
  return some;
}

// `ready` makes the buffers accessible and says whether there was anything to do.
template <class Ready, class Call>
ssize_t with(Ready ready, Call call) {
  for (int tries = 1;; ++tries) {
    const bool managed = ready();
    const ssize_t result = call();
    if (!managed || result != -1 || errno != EFAULT || tries == kMostTries) return result;
  }
}

template <class Call>
ssize_t with(const Buffer& b, Call call) {
  return with([&] { return prepare(b); }, call);
}

template <class Call>
ssize_t with(const iovec* parts, int count, bool written, Call call) {
  // The kernel refuses the rest.
  const size_t n = count > 0 && count <= 1024 ? static_cast<size_t>(count) : 0;
  return with([&] { return prepare(parts, n, written); }, call);
}

// A stream reads and writes large pieces straight from the program's memory, and remembers failure.
size_t product(size_t size, size_t n) {
  size_t bytes = 0;
  return __builtin_mul_overflow(size, n, &bytes) ? 0 : bytes;
}

#define REAL(name, ...) std::add_pointer_t<__VA_ARGS__> real_##name

REAL(read, ssize_t(int, void*, size_t));
REAL(write, ssize_t(int, const void*, size_t));
REAL(pread, ssize_t(int, void*, size_t, off_t));
REAL(pwrite, ssize_t(int, const void*, size_t, off_t));
REAL(pread64, ssize_t(int, void*, size_t, off_t));
REAL(pwrite64, ssize_t(int, const void*, size_t, off_t));
REAL(readv, ssize_t(int, const iovec*, int));
REAL(writev, ssize_t(int, const iovec*, int));
REAL(preadv, ssize_t(int, const iovec*, int, off_t));
REAL(pwritev, ssize_t(int, const iovec*, int, off_t));
REAL(preadv64, ssize_t(int, const iovec*, int, off_t));
REAL(pwritev64, ssize_t(int, const iovec*, int, off_t));
REAL(preadv2, ssize_t(int, const iovec*, int, off_t, int));
REAL(pwritev2, ssize_t(int, const iovec*, int, off_t, int));
REAL(preadv64v2, ssize_t(int, const iovec*, int, off_t, int));
REAL(pwritev64v2, ssize_t(int, const iovec*, int, off_t, int));
REAL(send, ssize_t(int, const void*, size_t, int));
REAL(recv, ssize_t(int, void*, size_t, int));
REAL(sendto, ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t));
REAL(recvfrom, ssize_t(int, void*, size_t, int, sockaddr*, socklen_t*));
REAL(sendmsg, ssize_t(int, const msghdr*, int));
REAL(recvmsg, ssize_t(int, msghdr*, int));
REAL(fread, size_t(void*, size_t, size_t, FILE*));
REAL(fwrite, size_t(const void*, size_t, size_t, FILE*));
REAL(fread_unlocked, size_t(void*, size_t, size_t, FILE*));
REAL(fwrite_unlocked, size_t(const void*, size_t, size_t, FILE*));
// What _FORTIFY_SOURCE makes of them.
REAL(read_chk, ssize_t(int, void*, size_t, size_t));
REAL(pread_chk, ssize_t(int, void*, size_t, off_t, size_t));
REAL(pread64_chk, ssize_t(int, void*, size_t, off_t, size_t));
REAL(recv_chk, ssize_t(int, void*, size_t, size_t, int));
REAL(recvfrom_chk, ssize_t(int, void*, size_t, size_t, int, sockaddr*, socklen_t*));
REAL(fread_chk, size_t(void*, size_t, size_t, size_t, FILE*));
REAL(fread_unlocked_chk, size_t(void*, size_t, size_t, size_t, FILE*));
#undef REAL

ssize_t our_read(int fd, void* to, size_t n) {
  return with({to, n, true}, [&] { return real_read(fd, to, n); });
}
ssize_t our_read_chk(int fd, void* to, size_t n, size_t room) {
  return with({to, n, true}, [&] { return real_read_chk(fd, to, n, room); });
}
ssize_t our_write(int fd, const void* from, size_t n) {
  return with({from, n, false}, [&] { return real_write(fd, from, n); });
}
ssize_t our_pread(int fd, void* to, size_t n, off_t at) {
  return with({to, n, true}, [&] { return real_pread(fd, to, n, at); });
}
ssize_t our_pread_chk(int fd, void* to, size_t n, off_t at, size_t room) {
  return with({to, n, true}, [&] { return real_pread_chk(fd, to, n, at, room); });
}
ssize_t our_pread64_chk(int fd, void* to, size_t n, off_t at, size_t room) {
  return with({to, n, true}, [&] { return real_pread64_chk(fd, to, n, at, room); });
}
ssize_t our_pwrite(int fd, const void* from, size_t n, off_t at) {
  return with({from, n, false}, [&] { return real_pwrite(fd, from, n, at); });
}
ssize_t our_readv(int fd, const iovec* parts, int n) {
  return with(parts, n, true, [&] { return real_readv(fd, parts, n); });
}
ssize_t our_writev(int fd, const iovec* parts, int n) {
  return with(parts, n, false, [&] { return real_writev(fd, parts, n); });
}
ssize_t our_preadv(int fd, const iovec* parts, int n, off_t at) {
  return with(parts, n, true, [&] { return real_preadv(fd, parts, n, at); });
}
ssize_t our_pwritev(int fd, const iovec* parts, int n, off_t at) {
  return with(parts, n, false, [&] { return real_pwritev(fd, parts, n, at); });
}
ssize_t our_preadv2(int fd, const iovec* parts, int n, off_t at, int flags) {
  return with(parts, n, true, [&] { return real_preadv2(fd, parts, n, at, flags); });
}
ssize_t our_pwritev2(int fd, const iovec* parts, int n, off_t at, int flags) {
  return with(parts, n, false, [&] { return real_pwritev2(fd, parts, n, at, flags); });
}
ssize_t our_send(int fd, const void* from, size_t n, int flags) {
  return with({from, n, false}, [&] { return real_send(fd, from, n, flags); });
}
ssize_t our_recv(int fd, void* to, size_t n, int flags) {
  return with({to, n, true}, [&] { return real_recv(fd, to, n, flags); });
}
ssize_t our_recv_chk(int fd, void* to, size_t n, size_t room, int flags) {
  return with({to, n, true}, [&] { return real_recv_chk(fd, to, n, room, flags); });
}
ssize_t our_sendto(int fd, const void* from, size_t n, int flags, const sockaddr* whom,
                   socklen_t bytes) {
  return with({from, n, false}, [&] { return real_sendto(fd, from, n, flags, whom, bytes); });
}
ssize_t our_recvfrom(int fd, void* to, size_t n, int flags, sockaddr* who, socklen_t* bytes) {
  return with({to, n, true}, [&] { return real_recvfrom(fd, to, n, flags, who, bytes); });
}
ssize_t our_recvfrom_chk(int fd, void* to, size_t n, size_t room, int flags, sockaddr* who,
                         socklen_t* bytes) {
  return with({to, n, true}, [&] { return real_recvfrom_chk(fd, to, n, room, flags, who, bytes); });
}
ssize_t our_sendmsg(int fd, const msghdr* m, int flags) {
  return with(
      [&] { return m && m->msg_iovlen <= 1024 && prepare(m->msg_iov, m->msg_iovlen, false); },
      [&] { return real_sendmsg(fd, m, flags); });
}
ssize_t our_recvmsg(int fd, msghdr* m, int flags) {
  return with(
      [&] { return m && m->msg_iovlen <= 1024 && prepare(m->msg_iov, m->msg_iovlen, true); },
      [&] { return real_recvmsg(fd, m, flags); });
}
size_t our_fread(void* to, size_t size, size_t n, FILE* file) {
  prepare(Buffer{to, product(size, n), true});
  return real_fread(to, size, n, file);
}
size_t our_fread_chk(void* to, size_t room, size_t size, size_t n, FILE* file) {
  prepare(Buffer{to, product(size, n), true});
  return real_fread_chk(to, room, size, n, file);
}
size_t our_fread_unlocked(void* to, size_t size, size_t n, FILE* file) {
  prepare(Buffer{to, product(size, n), true});
  return real_fread_unlocked(to, size, n, file);
}
size_t our_fread_unlocked_chk(void* to, size_t room, size_t size, size_t n, FILE* file) {
  prepare(Buffer{to, product(size, n), true});
  return real_fread_unlocked_chk(to, room, size, n, file);
}
size_t our_fwrite(const void* from, size_t size, size_t n, FILE* file) {
  prepare(Buffer{from, product(size, n), false});
  return real_fwrite(from, size, n, file);
}
size_t our_fwrite_unlocked(const void* from, size_t size, size_t n, FILE* file) {
  prepare(Buffer{from, product(size, n), false});
  return real_fwrite_unlocked(from, size, n, file);
}

template <class F>
Interposed entry(const char* name, F* ours, F** real) {
  return {name, reinterpret_cast<void*>(ours), reinterpret_cast<void**>(real)};
}

}  // namespace

InterposedList system_calls() {
  static const Interposed all[] = {
      entry("read", our_read, &real_read),
      entry("write", our_write, &real_write),
      entry("pread", our_pread, &real_pread),
      entry("pwrite", our_pwrite, &real_pwrite),
      // The same function, as offsets have 64 bits anyway.
      entry("pread64", our_pread, &real_pread64),
      entry("pwrite64", our_pwrite, &real_pwrite64),
      entry("readv", our_readv, &real_readv),
      entry("writev", our_writev, &real_writev),
      entry("preadv", our_preadv, &real_preadv),
      entry("pwritev", our_pwritev, &real_pwritev),
      entry("preadv64", our_preadv, &real_preadv64),
      entry("pwritev64", our_pwritev, &real_pwritev64),
      entry("preadv2", our_preadv2, &real_preadv2),
      entry("pwritev2", our_pwritev2, &real_pwritev2),
      entry("preadv64v2", our_preadv2, &real_preadv64v2),
      entry("pwritev64v2", our_pwritev2, &real_pwritev64v2),
      entry("send", our_send, &real_send),
      entry("recv", our_recv, &real_recv),
      entry("sendto", our_sendto, &real_sendto),
      entry("recvfrom", our_recvfrom, &real_recvfrom),
      entry("sendmsg", our_sendmsg, &real_sendmsg),
      entry("recvmsg", our_recvmsg, &real_recvmsg),
      entry("fread", our_fread, &real_fread),
      entry("fwrite", our_fwrite, &real_fwrite),
      entry("fread_unlocked", our_fread_unlocked, &real_fread_unlocked),
      entry("fwrite_unlocked", our_fwrite_unlocked, &real_fwrite_unlocked),
      entry("__read_chk", our_read_chk, &real_read_chk),
      entry("__pread_chk", our_pread_chk, &real_pread_chk),
      entry("__pread64_chk", our_pread64_chk, &real_pread64_chk),
      entry("__recv_chk", our_recv_chk, &real_recv_chk),
      entry("__recvfrom_chk", our_recvfrom_chk, &real_recvfrom_chk),
      entry("__fread_chk", our_fread_chk, &real_fread_chk),
      entry("__fread_unlocked_chk", our_fread_unlocked_chk, &real_fread_unlocked_chk),
  };
  return {all, std::size(all)};
}

}  // namespace sluice::client
