// SPDX-License-Identifier: Apache-2.0
// The software GPUs of this process: how many, what they claim to be, their memory and their
// primary contexts. Made once by cuInit from the environment (SLUICE_SOFTGPU_COUNT,
// SLUICE_SOFTGPU_MEMORY_MIB and the others of README.md, CUDA_VISIBLE_DEVICES); never destroyed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pci_address.h"
#include "softgpu/memory/device_memory.h"

namespace sluice::softgpu {

class Context;

// What the device is, in the numbers that CUDA asks for.
constexpr int kComputeMajor = 9;
constexpr int kComputeMinor = 0;
constexpr unsigned kMaxThreadsPerBlock = 1024;
constexpr unsigned kMaxBlockDim[3] = {1024, 1024, 64};
constexpr unsigned kMaxGridDim[3] = {2147483647, 65535, 65535};
constexpr unsigned kSharedPerBlock = 48u << 10;
constexpr unsigned kSharedPerBlockOptIn = 227u << 10;
constexpr unsigned kSharedPerSm = 228u << 10;
constexpr unsigned kSharedReserved = 1024;
constexpr unsigned kThreadsPerSm = 2048;
constexpr unsigned kBlocksPerSm = 32;
constexpr unsigned kRegistersPerSm = 65536;
constexpr unsigned kConstantBytes = 64u << 10;
constexpr unsigned kClockKilohertz = 1000000;

// A setting that is a number; one that is none is said to be, and is `fallback`.
long environment(const char* name, long fallback, long least, long most);

// How fast something is made to be; as fast as it goes where the setting is not there.
class Pace {
 public:
  Pace() = default;
  explicit Pace(const char* setting);  // MiB a second
  bool set() const { return mib_s_ > 0; }
  // Takes as long as so much of it would, besides.
  void take(uint64_t bytes) const;

 private:
  double mib_s_ = 0;
};

struct Device {
  Device(int ordinal, int physical, uint64_t memory_bytes);

  // It is another one's place from now on, of the same kind: what this process has is there.
  void move(int to);

  const int ordinal;  // as this process counts
  int physical;       // before CUDA_VISIBLE_DEVICES; changes while no call is under way
  std::array<unsigned char, 16> uuid;
  DeviceMemory memory;
  unsigned sm_count;
  uint64_t context_bytes = 0;  // that a context takes
  Pace copies, registers;      // between host and device; of host memory, with the driver
  bool mps = false;  // a daemon serves this process, and says how many of the above it has

  std::mutex primary_mutex;
  std::shared_ptr<Context> primary;
  unsigned primary_references = 0;
  unsigned primary_flags = 0;

  // Devices that may use this one's cuMemAlloc memory, as bits.
  std::atomic<uint64_t> peers{0};
};

constexpr const char* kDeviceName = "Sluice software GPU (CPU)";

// The visible devices; empty before initialise().
const std::vector<std::unique_ptr<Device>>& devices();
void initialise_devices();
Device* device_at(int ordinal);
// The place before CUDA_VISIBLE_DEVICES of the device with that UUID, 16 bytes; -1: it is none.
int physical_of(const unsigned char* uuid);
std::string device_uuid_text(const Device& device);
PciAddress device_pci_address(const Device& device);

}  // namespace sluice::softgpu
