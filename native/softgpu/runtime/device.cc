// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/device.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "softgpu/runtime/log.h"

namespace sluice::softgpu {
namespace {

constexpr int kMostDevices = 64;

// The same on every machine and in every run: "Sluice", then the index.
std::array<unsigned char, 16> make_uuid(int physical) {
  std::array<unsigned char, 16> uuid = {0x53, 0x6c, 0x75, 0x69, 0x63, 0x65, 0x40, 0x00,
                                        0x80, 0x73, 0x6f, 0x66, 0x74, 0x67, 0x70, 0x00};
  uuid[15] = static_cast<unsigned char>(physical);
  return uuid;
}

std::string uuid_text(const std::array<unsigned char, 16>& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", uuid[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

// CUDA_VISIBLE_DEVICES: the list ends at the first entry that names no device.
std::vector<int> visible(int count) {
  std::vector<int> result;
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!text) {
    for (int i = 0; i < count; ++i) result.push_back(i);
    return result;
  }
  std::string list(text);
  for (size_t start = 0; start <= list.size();) {
    size_t comma = std::min(list.find(',', start), list.size());
    std::string entry = list.substr(start, comma - start);
    entry.erase(0, entry.find_first_not_of(" \t"));
    entry.erase(entry.find_last_not_of(" \t") + 1);
    int index = -1;
    if (entry.rfind("GPU-", 0) == 0) {
      for (int i = 0; i < count; ++i) {
        if (uuid_text(make_uuid(i)).rfind(entry, 0) == 0) index = index < 0 ? i : index;
      }
    } else if (!entry.empty() && entry.find_first_not_of("0123456789") == std::string::npos &&
               entry.size() < 6) {
      index = std::stoi(entry);
    }
    if (index < 0 || index >= count) break;
    if (std::find(result.begin(), result.end(), index) != result.end()) return {};
    result.push_back(index);
    start = comma + 1;
  }
  return result;
}

// Whether a daemon listens where MPS's clients look for one. The connection stays, as long as this
// process does: so the daemon knows whom it serves.
bool joins_mps() {
  const char* folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  sockaddr_un address{AF_UNIX, {}};
  const std::string path = std::string(folder ? folder : "") + "/control";
  if (!folder || path.size() >= sizeof address.sun_path) return false;
  path.copy(address.sun_path, path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return true;
  close(fd);
  return false;
}

std::vector<std::unique_ptr<Device>>& list() {
  static auto* all = new std::vector<std::unique_ptr<Device>>;
  return *all;
}

}  // namespace

long environment(const char* name, long fallback, long least, long most) {
  const char* text = std::getenv(name);
  if (!text || !*text) return fallback;
  char* end = nullptr;
  long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value < least || value > most) {
    log(0, "%s=%s is not a number from %ld to %ld; using %ld", name, text, least, most, fallback);
    return fallback;
  }
  return value;
}

Pace::Pace(const char* setting)
    : mib_s_(static_cast<double>(environment(setting, 0, 0, 1l << 30))) {}

void Pace::take(uint64_t bytes) const {
  if (!set()) return;
  const double seconds = static_cast<double>(bytes) / (1 << 20) / mib_s_;
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

Device::Device(int ordinal_, int physical_, uint64_t memory_bytes)
    : ordinal(ordinal_),
      physical(physical_),
      uuid(make_uuid(physical_)),
      memory(memory_bytes, SharedUse::of(physical_)) {
  sm_count = std::max(1u, std::thread::hardware_concurrency());
}

void Device::move(int to) {
  physical = to;
  uuid = make_uuid(to);
  memory.move(SharedUse::of(to));
}

int physical_of(const unsigned char* uuid) {
  const int place = uuid[15];
  return place < kMostDevices && std::equal(uuid, uuid + 16, make_uuid(place).begin()) ? place : -1;
}

const std::vector<std::unique_ptr<Device>>& devices() { return list(); }

void initialise_devices() {
  static std::once_flag once;
  std::call_once(once, [] {
    int count = static_cast<int>(environment("SLUICE_SOFTGPU_COUNT", 1, 0, kMostDevices));
    uint64_t mib =
        static_cast<uint64_t>(environment("SLUICE_SOFTGPU_MEMORY_MIB", 4096, 2, 16l << 20));
    mib = mib / 2 * 2;
    const bool mps = joins_mps();
    for (int physical : visible(count)) {
      list().push_back(
          std::make_unique<Device>(static_cast<int>(list().size()), physical, mib << 20));
      Device& device = *list().back();
      device.context_bytes =
          static_cast<uint64_t>(environment("SLUICE_SOFTGPU_CONTEXT_MIB", 0, 0, 16l << 10)) << 20;
      device.copies = Pace("SLUICE_SOFTGPU_COPY_MIB_S");
      device.registers = Pace("SLUICE_SOFTGPU_REGISTER_MIB_S");
      device.mps = mps;
      if (!mps) continue;
      const auto percent =
          static_cast<unsigned>(environment("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", 100, 1, 100));
      device.sm_count = std::max(1u, device.sm_count * percent / 100);
    }
  });
}

Device* device_at(int ordinal) {
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= list().size()) return nullptr;
  return list()[static_cast<size_t>(ordinal)].get();
}

std::string device_uuid_text(const Device& device) { return uuid_text(device.uuid); }

PciAddress device_pci_address(const Device& device) {
  // Domain ffff does not exist on a real machine, so the address is never another card's.
  return {0xffff, static_cast<uint32_t>(device.physical + 1), 0, 0};
}

}  // namespace sluice::softgpu
