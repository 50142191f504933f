// SPDX-License-Identifier: Apache-2.0
// Preloaded into a client: it finds a vsock device of Sluice's, whose host is the Unix socket that
// SLUICE_TEST_VSOCK names. So a client's own vsock code runs on a machine that is no guest. The
// port of the bell is answered by nobody.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { CID = 0x53400001, PORT = 9960 };

static int is_device(const char* path) { return strcmp(path, "/dev/vsock") == 0; }

#define OPEN(name)                                                          \
  int name(const char* path, int flags, ...) {                              \
    int (*real)(const char*, int, ...) = dlsym(RTLD_NEXT, #name);           \
    va_list more;                                                           \
    va_start(more, flags);                                                  \
    const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0; \
    va_end(more);                                                           \
    return real(is_device(path) ? "/dev/null" : path, flags, mode);         \
  }
OPEN(open)
OPEN(open64)

int ioctl(int descriptor, unsigned long request, ...) {
  int (*real)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
  va_list more;
  va_start(more, request);
  void* argument = va_arg(more, void*);
  va_end(more);
  if (request != IOCTL_VM_SOCKETS_GET_LOCAL_CID) return real(descriptor, request, argument);
  *(unsigned*)argument = CID;
  return 0;
}

int socket(int domain, int type, int protocol) {
  int (*real)(int, int, int) = dlsym(RTLD_NEXT, "socket");
  return real(domain == AF_VSOCK ? AF_UNIX : domain, type, protocol);
}

int connect(int descriptor, const struct sockaddr* address, socklen_t length) {
  int (*real)(int, const struct sockaddr*, socklen_t) = dlsym(RTLD_NEXT, "connect");
  if (address->sa_family != AF_VSOCK) return real(descriptor, address, length);
  const char* path = getenv("SLUICE_TEST_VSOCK");
  if (!path || ((const struct sockaddr_vm*)address)->svm_port != PORT) {
    errno = ECONNREFUSED;
    return -1;
  }
  struct sockaddr_un host = {.sun_family = AF_UNIX};
  strncpy(host.sun_path, path, sizeof host.sun_path - 1);
  return real(descriptor, (struct sockaddr*)&host, sizeof host);
}
