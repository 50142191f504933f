// SPDX-License-Identifier: Apache-2.0
// Each call that has the kernel read or write the program's memory, on pages that the device has:
// prints the names of those that did not move what they should. Then: whether `read` was the C
// library's before there was managed memory, and whether it is after.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

int cudaFree(void*), cudaMallocManaged(void**, size_t, unsigned), cudaMemset(void*, int, size_t);
int cudaDeviceSynchronize(void);

enum { kBytes = 150000 };

// That its size is known has the compiler take the checked calls where they are asked for.
__attribute__((noinline, alloc_size(1))) static char* managed(size_t bytes) {
  void* memory = NULL;
  if (cudaMallocManaged(&memory, bytes, 1)) exit(1);
  return memory;
}

static void device_fills(char* memory, int byte) {
  if (cudaMemset(memory, byte, kBytes) || cudaDeviceSynchronize()) exit(2);
}

static int holds(const char* memory, int byte) {
  for (int i = 0; i < kBytes; ++i)
    if (memory[i] != byte) return 0;
  return 1;
}

__attribute__((noipa)) static void* read_of(void) { return (void*)read; }

// `out` from pages that the device has, `in` to such pages, of the same file or socket.
#define PAIR(name_out, out, name_in, in)                    \
  do {                                                      \
    ++byte;                                                 \
    device_fills(from, byte);                               \
    device_fills(to, 0);                                    \
    const long gone = (out), come = (in);                   \
    if (gone != (long)n) puts(name_out);                    \
    if (come != (long)n || !holds(to, byte)) puts(name_in); \
  } while (0)

int main(void) {
  cudaFree(NULL);
  void* const real = dlsym(dlopen("libc.so.6", RTLD_NOW), "read");
  const int before = read_of() == real;
  char *const from = managed(kBytes), *const to = managed(kBytes);
  volatile size_t size = kBytes;
  const size_t n = size;
  int byte = 0, ends[2];
  FILE* const file = tmpfile();
  const int fd = fileno(file);
  const struct iovec sources[] = {{from, 1000}, {from + 1000, n - 1000}};
  const struct iovec places[] = {{to, n - 70}, {to + n - 70, 70}};
  struct msghdr source = {.msg_iov = (struct iovec*)sources, .msg_iovlen = 2};
  struct msghdr place = {.msg_iov = (struct iovec*)places, .msg_iovlen = 2};
  PAIR("write", write(fd, from, n), "read", (lseek(fd, 0, SEEK_SET), read(fd, to, n)));
  PAIR("pwrite", pwrite(fd, from, n, 0), "pread", pread(fd, to, n, 0));
  PAIR("pwrite64", pwrite64(fd, from, n, 0), "pread64", pread64(fd, to, n, 0));
  lseek(fd, 0, SEEK_SET);
  PAIR("writev", writev(fd, sources, 2), "readv", (lseek(fd, 0, SEEK_SET), readv(fd, places, 2)));
  PAIR("pwritev", pwritev(fd, sources, 2, 0), "preadv", preadv(fd, places, 2, 0));
  PAIR("pwritev2", pwritev2(fd, sources, 2, 0, 0), "preadv2", preadv2(fd, places, 2, 0, 0));
  rewind(file);
  PAIR("fwrite", (long)fwrite(from, 1, n, file), "fread",
       (rewind(file), (long)fread(to, 1, n, file)));
  rewind(file);
  PAIR("fwrite_unlocked", (long)fwrite_unlocked(from, 1, n, file), "fread_unlocked",
       (rewind(file), (long)fread_unlocked(to, 1, n, file)));
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends)) return 3;
  PAIR("send", send(ends[0], from, n, 0), "recv", recv(ends[1], to, n, 0));
  PAIR("sendto", sendto(ends[0], from, n, 0, NULL, 0), "recvfrom",
       recvfrom(ends[1], to, n, 0, NULL, NULL));
  PAIR("sendmsg", sendmsg(ends[0], &source, 0), "recvmsg", recvmsg(ends[1], &place, 0));
  printf("before %d, after %d\n", before, read_of() == real);
  return 0;
}
