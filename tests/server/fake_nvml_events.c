// SPDX-License-Identifier: Apache-2.0
// Stands in for NVIDIA's libnvidia-ml.so.1 on a node: two GPUs with the software GPU's UUIDs, whose
// errors are what a test writes into the file SLUICE_FAKE_NVML, a line each:
//   xid GPU NUMBER    the GPU reports an XID error
//   dbe GPU           an uncorrectable ECC error
//   lost GPU          the GPU has fallen off the bus, as every call about it says from then on
//   back GPU          it answers again
//   free GPU MIB      so much of its memory is free from then on, all before
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kOk = 0, kNotFound = 6, kTimeout = 10, kLost = 15, kGpus = 2 };
typedef struct {
  int index, lost;
} Gpu;
typedef Gpu* Device;
typedef struct {
  Device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
} Event;

static Gpu gpus[kGpus] = {{0, 0}, {1, 0}};
static int registered[kGpus];
static long read_bytes;  // of the file, which are done with

// Takes the next line, if there is a whole one. The lines that make no event are only obeyed.
static int next_event(Event* event) {
  const char* path = getenv("SLUICE_FAKE_NVML");
  FILE* file = path ? fopen(path, "r") : NULL;
  char line[128], verb[16];
  if (!file) return 0;
  int found = 0;
  fseek(file, read_bytes, SEEK_SET);
  while (!found && fgets(line, sizeof line, file) && strchr(line, '\n')) {
    int gpu = 0, number = 0;
    read_bytes = ftell(file);
    if (sscanf(line, "%15s %d %d", verb, &gpu, &number) < 2 || gpu < 0 || gpu >= kGpus) continue;
    if (strcmp(verb, "lost") == 0) gpus[gpu].lost = 1;
    if (strcmp(verb, "back") == 0) gpus[gpu].lost = 0;
    const int xid = strcmp(verb, "xid") == 0;
    if (!xid && strcmp(verb, "dbe") != 0) continue;
    if (!registered[gpu]) continue;
    memset(event, 0, sizeof *event);
    event->device = &gpus[gpu];
    event->type = xid ? 8 : 2;
    event->data = (unsigned long long)number;
    found = 1;
  }
  fclose(file);
  return found;
}

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  return kOk;
}
int nvmlInit_v2(void) { return kOk; }
int nvmlShutdown(void) { return kOk; }
const char* nvmlErrorString(int error) { return error == kLost ? "GPU is lost" : "an error"; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = kGpus;
  return kOk;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  if (index >= kGpus) return kNotFound;
  *device = &gpus[index];
  return kOk;
}
typedef struct {
  char legacy[16];
  unsigned domain, bus, device, pci_device, pci_subsystem;
  char bus_id[32];
} Pci;
int nvmlDeviceGetPciInfo_v3(Device device, Pci* pci) {
  memset(pci, 0, sizeof *pci);
  snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", device->index + 1);
  return kOk;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Device* device) {
  const long bus = strtol(bus_id + 9, NULL, 16);
  if (bus < 1 || bus > kGpus) return kNotFound;
  *device = &gpus[bus - 1];
  return kOk;
}
int nvmlDeviceGetUUID(Device device, char* text, unsigned bytes) {
  snprintf(text, bytes, "GPU-536c7569-6365-4000-8073-6f66746770%02x", device->index);
  return kOk;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
  char text[64];
  for (int i = 0; i < kGpus; ++i) {
    nvmlDeviceGetUUID(&gpus[i], text, sizeof text);
    if (strcmp(text, uuid) == 0) return nvmlDeviceGetHandleByIndex_v2((unsigned)i, device);
  }
  return kNotFound;
}
// The last word about it, whoever has read the file so far.
int nvmlDeviceGetMemoryInfo(Device device, unsigned long long* memory) {
  const char* path = getenv("SLUICE_FAKE_NVML");
  FILE* file = path ? fopen(path, "r") : NULL;
  char line[128];
  int gpu = 0, mib = 0;
  memory[0] = memory[1] = 4096ull << 20;
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "free %d %d", &gpu, &mib) == 2 && gpu == device->index)
      memory[1] = (unsigned long long)mib << 20;
  if (file) fclose(file);
  memory[2] = memory[0] - memory[1];
  return device->lost ? kLost : kOk;
}
int nvmlDeviceGetSupportedEventTypes(Device device, unsigned long long* types) {
  *types = 0x1f;
  return device->lost ? kLost : kOk;
}
int nvmlEventSetCreate(void** set) {
  *set = gpus;
  memset(registered, 0, sizeof registered);
  return kOk;
}
int nvmlDeviceRegisterEvents(Device device, unsigned long long types, void* set) {
  (void)set;
  registered[device->index] = (types & 8) != 0;
  return kOk;
}
int nvmlEventSetWait_v2(void* set, Event* event, unsigned milliseconds) {
  (void)set;
  for (unsigned slept = 0;; slept += 20) {
    if (next_event(event)) return kOk;
    for (int i = 0; i < kGpus; ++i)
      if (registered[i] && gpus[i].lost) return kLost;
    if (slept >= milliseconds) return kTimeout;
    usleep(20000);
  }
}
int nvmlEventSetFree(void* set) {
  (void)set;
  return kOk;
}
