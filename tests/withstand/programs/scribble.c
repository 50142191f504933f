/* SPDX-License-Identifier: Apache-2.0
 * scribble FILE SEED ROUNDS [BEGIN END]: writes random bytes over all of FILE through a shared
 * mapping (or over its bytes BEGIN to END), ROUNDS times over. What a hostile guest does to its
 * ivshmem region, and a hostile process to its session's memory. Started by tests/withstand;
 * static, so that it runs in any guest.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

int main(int argc, char** argv) {
  if (argc != 4 && argc != 6) {
    fprintf(stderr, "usage: scribble FILE SEED ROUNDS [BEGIN END]\n");
    return 2;
  }
  const int fd = open(argv[1], O_RDWR);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0) {
    perror(argv[1]);
    return 1;
  }
  volatile uint64_t* words =
      mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (words == MAP_FAILED) {
    perror("mmap");
    return 1;
  }
  uint64_t state = strtoull(argv[2], NULL, 0) * 2 + 1, written = 0;
  const uint64_t begin = argc == 6 ? strtoull(argv[4], NULL, 0) / 8 : 0;
  uint64_t end = argc == 6 ? strtoull(argv[5], NULL, 0) / 8 : (uint64_t)st.st_size / 8;
  if (end > (uint64_t)st.st_size / 8) end = (uint64_t)st.st_size / 8;
  for (long round = strtol(argv[3], NULL, 0); round > 0; --round) {
    for (uint64_t i = begin; i < end; ++i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      words[i] = state;
      ++written;
    }
  }
  printf("scribbled %llu words over %s\n", (unsigned long long)written, argv[1]);
  return 0;
}
