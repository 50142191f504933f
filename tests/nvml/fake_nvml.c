// SPDX-License-Identifier: Apache-2.0
// Stands in for NVIDIA's libnvidia-ml.so.1 on a node: one GPU with figures of its own, and a power
// that counts how often it was asked for.
#include <string.h>

typedef struct Gpu* Device;
static int started, asked;
static char gpu;

int nvmlInit_v2(void) {
  started = 1;
  return 0;
}
int nvmlInitWithFlags(unsigned flags) {
  started = 1;
  return flags == 0 ? 0 : 2;
}
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  *device = (Device)&gpu;
  return index == 0 ? 0 : 2;
}
int nvmlDeviceGetUUID(Device device, char* uuid, unsigned length) {
  (void)device;
  strncpy(uuid, "GPU-536c7569-6365-4000-8073-6f6674677000", length);
  return 0;
}
// nvmlPciInfo_t: a legacy bus id, five numbers, and the bus id.
int nvmlDeviceGetPciInfo_v3(Device device, char* info) {
  (void)device;
  memset(info, 0, 68);
  strcpy(info + 36, "0000FFFF:01:00.0");
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, Device* device) {
  *device = (Device)&gpu;
  return strcmp(bus, "0000FFFF:01:00.0") == 0 ? 0 : 6;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
  if (!started) return 1;
  if (strncmp(uuid, "GPU-536c7569-", 13) != 0) return 6;
  *device = (Device)&gpu;
  return 0;
}
int nvmlDeviceGetUtilizationRates(Device device, unsigned* both) {
  both[0] = 37;
  both[1] = 12;
  return device == (Device)&gpu ? 0 : 2;
}
int nvmlDeviceGetTemperature(Device device, int sensor, unsigned* degrees) {
  *degrees = 41;
  return device == (Device)&gpu && sensor == 0 ? 0 : 2;
}
int nvmlDeviceGetTemperatureThreshold(Device device, int which, unsigned* degrees) {
  (void)device;
  *degrees = 90 - (unsigned)which;
  return which < 2 ? 0 : 3;
}
int nvmlDeviceGetPowerUsage(Device device, unsigned* milliwatts) {
  (void)device;
  *milliwatts = 120000 + (unsigned)++asked;
  return 0;
}
int nvmlDeviceGetPowerManagementLimit(Device device, unsigned* milliwatts) {
  (void)device;
  *milliwatts = 700000;
  return 0;
}
int nvmlDeviceGetPersistenceMode(Device device, int* mode) {
  (void)device;
  *mode = 1;
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned* milliwatts) {
  (void)device;
  *milliwatts = 700000;
  return 0;
}
int nvmlDeviceGetClockInfo(Device device, int which, unsigned* mhz) {
  (void)device;
  *mhz = 1000 + (unsigned)which;
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long* millijoules) {
  (void)device;
  *millijoules = 1ull << 40;
  return 0;
}
int nvmlDeviceGetPerformanceState(Device device, int* state) {
  (void)device;
  *state = 0;
  return 0;
}
int nvmlDeviceGetCurrPcieLinkGeneration(Device device, unsigned* generation) {
  (void)device;
  *generation = 5;
  return 0;
}
int nvmlDeviceGetFanSpeed(Device device, unsigned* percent) {
  (void)device;
  (void)percent;
  return 3;
}
