// SPDX-License-Identifier: Apache-2.0
// Stands in for NVIDIA's libnvidia-ml.so.1 in tests of what is read of it: two GPUs, GPU-0 with
// every sensor, GPU-1 with none but its memory. It counts how often it is open: a call while it is
// not ends the process, and SLUICE_FAKE_NVML_HANGS=1 makes GPU-0 never answer.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kOk = 0, kInvalid = 2, kNotSupported = 3, kNotFound = 6, kInsufficientSize = 7 };
typedef struct {
  int index;
} Gpu;
static Gpu gpus[2] = {{0}, {1}};
static int open_count;

static void must_be_open(void) {
  if (open_count < 1) {
    fputs("NVML was asked while it was not open\n", stderr);
    abort();
  }
}

int nvmlInit_v2(void) { return ++open_count, kOk; }
int nvmlInitWithFlags(unsigned flags) { return (void)flags, ++open_count, kOk; }
int nvmlShutdown(void) { return must_be_open(), --open_count, kOk; }
int fake_open_count(void) { return open_count; }
const char* nvmlErrorString(int status) {
  return status == kNotSupported ? "no such sensor" : "no";
}

int nvmlDeviceGetCount_v2(unsigned* count) { return must_be_open(), *count = 2, kOk; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu** gpu) {
  must_be_open();
  if (index > 1) return kInvalid;
  return *gpu = &gpus[index], kOk;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* place, Gpu** gpu) {
  must_be_open();
  if (strncmp(place, "0000:0", 6) != 0) return kNotFound;
  return *gpu = &gpus[place[6] - '0'], kOk;
}
int nvmlDeviceGetUUID(Gpu* gpu, char* text, unsigned size) {
  must_be_open();
  return snprintf(text, size, "GPU-%d", gpu->index), kOk;
}
typedef struct {
  char legacy[16];
  unsigned domain, bus, device, ids, subsystem;
  char place[32];
} Pci;
int nvmlDeviceGetPciInfo_v3(Gpu* gpu, Pci* pci) {
  memset(pci, 0, sizeof *pci);
  snprintf(pci->place, sizeof pci->place, "0000:0%d:00.0", gpu->index);
  return must_be_open(), kOk;
}

static int only_first(Gpu* gpu) {
  must_be_open();
  if (gpu->index == 0 && getenv("SLUICE_FAKE_NVML_HANGS"))
    for (;;) pause();
  return gpu->index == 0 ? kOk : kNotSupported;
}
#define FIRST(value, to) return only_first(gpu) ? kNotSupported : ((to) = (value), kOk)
int nvmlDeviceGetUtilizationRates(Gpu* gpu, unsigned rates[2]) {
  if (only_first(gpu)) return kNotSupported;
  rates[0] = 75, rates[1] = 20;
  return kOk;
}
typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} Memory;
int nvmlDeviceGetMemoryInfo_v2(Gpu* gpu, Memory* memory) {
  must_be_open();
  memory->total = 1000, memory->reserved = 100, memory->free = 600, memory->used = 300;
  return (void)gpu, kOk;
}
int nvmlDeviceGetTemperature(Gpu* gpu, int sensor, unsigned* t) {
  (void)sensor;
  FIRST(61, *t);
}
int nvmlDeviceGetPowerUsage(Gpu* gpu, unsigned* mw) { FIRST(512500, *mw); }
int nvmlDeviceGetEnforcedPowerLimit(Gpu* gpu, unsigned* mw) { FIRST(700000, *mw); }
int nvmlDeviceGetTotalEnergyConsumption(Gpu* gpu, unsigned long long* mj) { FIRST(9000, *mj); }
int nvmlDeviceGetClockInfo(Gpu* gpu, int kind, unsigned* mhz) {
  FIRST(kind == 1 ? 1980 : 2619, *mhz);
}
int nvmlDeviceGetTotalEccErrors(Gpu* gpu, int error, int counter, unsigned long long* count) {
  FIRST((unsigned long long)(10 * error + counter), *count);
}
int nvmlDeviceGetRemappedRows(Gpu* gpu, unsigned* c, unsigned* u, unsigned* p, unsigned* failed) {
  if (only_first(gpu)) return kNotSupported;
  return *c = 1, *u = 2, *p = 0, *failed = 0, kOk;
}
int nvmlDeviceGetPcieReplayCounter(Gpu* gpu, unsigned* count) { FIRST(7, *count); }
typedef struct {
  unsigned pid;
  unsigned long long time;
  unsigned sm, memory, encoder, decoder;
} Sample;
// Two processes, of which one was seen before.
int nvmlDeviceGetProcessUtilization(Gpu* gpu, Sample* samples, unsigned* count,
                                    unsigned long long since) {
  if (only_first(gpu)) return kNotSupported;
  if (!samples || *count < 2) return *count = 2, kInsufficientSize;
  samples[0] = (Sample){41, since + 1, 35, 9, 0, 0};
  samples[1] = (Sample){42, since, 99, 9, 0, 0};
  return *count = 2, kOk;
}
