/* SPDX-License-Identifier: Apache-2.0
 * sluice-watch RESOURCE SLOT GENERATION PID: stands beside a program in a guest, outside its
 * process tree, and says for it that it died. Started by libcuda when it claims a slot; returns at
 * once and goes on in the background until the program ends or the host ends the session. Uses
 * nothing but the C library, so that it starts fast and stays small. The offsets are those of
 * channel/slot.h (checked when the client library is built).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/watch/offsets.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

/* False: the text is no number from 0 to `most`, or more than that. */
static bool read_number(const char* text, unsigned long most, unsigned long* value) {
  char* end = NULL;
  errno = 0;
  *value = strtoul(text, &end, 10);
  return text[0] >= '0' && text[0] <= '9' && *end == 0 && errno == 0 && *value <= most;
}

static _Atomic uint32_t* word(char* slot, size_t offset) {
  return (_Atomic uint32_t*)(slot + offset);
}

int main(int argc, char** argv) {
  static const char* const names[] = {"SLOT", "GENERATION", "PID"};
  static const unsigned long most[] = {UINT16_MAX, UINT32_MAX, INT32_MAX};
  unsigned long numbers[3];
  if (argc != 5) {
    fprintf(stderr, "usage: sluice-watch RESOURCE SLOT GENERATION PID\n");
    return 2;
  }
  for (int i = 0; i < 3; ++i) {
    if (read_number(argv[2 + i], most[i], &numbers[i])) continue;
    fprintf(stderr, "sluice-watch: %s is \"%s\"; a number from 0 to %lu is wanted\n", names[i],
            argv[2 + i], most[i]);
    return 2;
  }
  const uint64_t index = numbers[0];
  const uint32_t generation = (uint32_t)numbers[1];
  const pid_t pid = (pid_t)numbers[2];
  const int fd = open(argv[1], O_RDWR | O_CLOEXEC);
  if (fd < 0) return 1;
  char* region = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
  if (region == MAP_FAILED) return 1;
  const uint64_t slot_bytes = *(volatile uint64_t*)(region + SLUICE_REGION_SLOT_BYTES);
  if (slot_bytes < 4096 || slot_bytes % 4096) return 1;
  char* slot =
      mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(4096 + slot_bytes * index));
  if (slot == MAP_FAILED) return 1;
  /* The process is pinned by a descriptor before its parent may go on: no other process can be
   * taken for it. */
  const int process = (int)syscall(SYS_pidfd_open, pid, 0);
  if (process < 0) return 1;
  const pid_t child = fork();
  if (child != 0) return child < 0; /* the program waits for this exit only */
  setsid();
  prctl(PR_SET_NAME, "sluice-watch");
  for (int i = 1; i < NSIG; ++i) signal(i, SIG_IGN);
  const int null = open("/dev/null", O_RDWR);
  for (int i = 0; i < 3 && null >= 0; ++i) dup2(null, i);
  for (int i = 3; i < 256; ++i)
    if (i != process) close(i);
  for (;;) {
    struct pollfd p = {process, POLLIN, 0};
    const int ended = poll(&p, 1, 1000);
    if (atomic_load(word(slot, SLUICE_SLOT_GENERATION)) != generation)
      return 0; /* the slot is somebody else's, or the device is gone */
    const uint32_t state = atomic_load(word(slot, SLUICE_SLOT_STATE));
    if (state == SLUICE_STATE_DEAD || state == SLUICE_STATE_FREE || state == SLUICE_STATE_CLOSED)
      return 0;
    atomic_fetch_add((_Atomic uint64_t*)(slot + SLUICE_SLOT_HEARTBEAT), 1);
    if (ended <= 0) continue;
    atomic_store(word(slot, SLUICE_SLOT_STATE), SLUICE_STATE_CLOSED);
    atomic_store(word(slot, SLUICE_SLOT_SLEEPING), 0);
    atomic_store(word(slot, SLUICE_SLOT_DOORBELL), 1);
    return 0;
  }
}
