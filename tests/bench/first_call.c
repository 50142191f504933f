/* SPDX-License-Identifier: Apache-2.0
 * first_call MARK: waits in a guest until it can use its channel, and says so on standard output:
 *   MARK seen     an ivshmem device is there
 *   MARK open     its memory may be opened
 *   MARK usable   cuInit of the client library succeeded and counted a GPU
 * A failed cuInit stays one in its process, so each attempt is a child. Nothing here waits longer
 * than a few milliseconds, so that the time between two lines is the guest's. Started by
 * guest_channel.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void rest(void) {
  const struct timespec pause = {0, 3000000};
  nanosleep(&pause, NULL);
}

static int has_device(char* folder, size_t room) {
  glob_t found;
  int here = 0;
  if (glob("/sys/bus/pci/devices/*/device", GLOB_NOSORT, NULL, &found) != 0) return 0;
  for (size_t i = 0; i < found.gl_pathc && !here; ++i) {
    char word[16] = "";
    FILE* file = fopen(found.gl_pathv[i], "r");
    if (!file) continue;
    here = fgets(word, sizeof word, file) && strncmp(word, "0x1110", 6) == 0;
    fclose(file);
    if (here) {
      snprintf(folder, room, "%s", found.gl_pathv[i]);
      *strrchr(folder, '/') = 0;
    }
  }
  globfree(&found);
  return here;
}

static int can_open(const char* folder) {
  char path[512];
  snprintf(path, sizeof path, "%s/resource2", folder);
  const int fd = open(path, O_RDWR);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

/* In a child: 0 where a GPU can be used. */
static int first_call(void) {
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (!cuda) {
    fprintf(stderr, "%s\n", dlerror());
    return 3;
  }
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
  int (*count)(int*) = (int (*)(int*))dlsym(cuda, "cuDeviceGetCount");
  int gpus = 0;
  return !init || !count ? 3 : init(0) == 0 && count(&gpus) == 0 && gpus > 0 ? 0 : 1;
}

static void say(const char* mark, const char* what) {
  printf("%s %s\n", mark, what);
  fflush(stdout);
}

int main(int argc, char** argv) {
  const char* mark = argc > 1 ? argv[1] : "first_call";
  char folder[512] = "";
  while (!has_device(folder, sizeof folder)) rest();
  say(mark, "seen");
  while (!has_device(folder, sizeof folder) || !can_open(folder)) rest();
  say(mark, "open");
  for (;;) {
    const pid_t child = fork();
    int status = 0;
    if (child == 0) _exit(first_call());
    if (child < 0 || waitpid(child, &status, 0) != child) return 1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 3) return 3;
    rest();
  }
  say(mark, "usable");
  return 0;
}
