// SPDX-License-Identifier: Apache-2.0
#include "worker/node_nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "abi/nvml.h"
#include "process/log.h"
#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

using wire::Figure;

std::string folder_of(const char* path) {
  const std::unique_ptr<char, void (*)(void*)> whole(realpath(path, nullptr), std::free);
  const std::string text = whole ? whole.get() : "";
  return text.substr(0, text.rfind('/'));
}

// Sluice's own client library has the same name, and asks a worker in its turn.
bool is_ours(const std::string& path) {
  const std::string own = folder_of("/proc/self/exe"), folder = folder_of(path.c_str());
  return folder == own || folder == own.substr(0, own.rfind('/')) + "/lib";
}

}  // namespace

void NodeNvml::load() {
  if (looked_) return;
  looked_ = true;
  const std::string path = driver_.substr(0, driver_.rfind('/') + 1) + "libnvidia-ml.so.1";
  if (access(path.c_str(), F_OK) != 0 || is_ours(path)) return;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return process::log_info(path + " cannot be loaded: " + dlerror());
  const auto init = reinterpret_cast<decltype(&::nvmlInit_v2)>(dlsym(library, "nvmlInit_v2"));
  const nvmlReturn_t e = init ? init() : NVML_ERROR_FUNCTION_NOT_FOUND;
  if (e == NVML_SUCCESS)
    library_ = library;
  else
    process::log_info(path + " does not start: NVML error " + std::to_string(e));
}

wire::GpuFigures NodeNvml::figures(const std::string& uuid) {
  std::lock_guard lock(mutex_);
  load();
  if (!library_) return {};
  Kept& kept = kept_[uuid];
  const auto now = std::chrono::steady_clock::now();
  if (kept.device && now - kept.at < kFreshFor) return kept.figures;
  if (!kept.device) {
    const auto find = reinterpret_cast<decltype(&::nvmlDeviceGetHandleByUUID)>(
        dlsym(library_, "nvmlDeviceGetHandleByUUID"));
    nvmlDevice_t device = nullptr;
    if (!find || find(uuid.c_str(), &device) != NVML_SUCCESS) return {};
    kept.device = device;
  }
  kept.figures = {};
  sample(kept.device, &kept.figures);
  kept.at = now;
  return kept.figures;
}

// An older NVML lacks functions, a GPU lacks figures: what is not there stays unknown.
void NodeNvml::sample(void* handle, wire::GpuFigures* to) const {
  const auto device = static_cast<nvmlDevice_t>(handle);
  // f(device, T *), and f(device, which, T *).
  const auto read = [&]<class T>(Figure f, const char* name, T value) {
    const auto get = reinterpret_cast<nvmlReturn_t (*)(nvmlDevice_t, T*)>(dlsym(library_, name));
    if (get && get(device, &value) == NVML_SUCCESS)
      wire::set_figure(to, f, static_cast<uint64_t>(value));
  };
  const auto one = [&](Figure f, const char* name) { read(f, name, 0u); };
  const auto wide = [&](Figure f, const char* name) { read(f, name, 0ull); };
  const auto four = [&](Figure first, const char* name) {
    const auto get =
        reinterpret_cast<nvmlReturn_t (*)(nvmlDevice_t, int, unsigned*)>(dlsym(library_, name));
    for (int i = 0; get && i < 4; ++i) {
      unsigned value = 0;
      if (get(device, i, &value) == NVML_SUCCESS)
        wire::set_figure(
            to, static_cast<Figure>(static_cast<uint32_t>(first) + static_cast<uint32_t>(i)),
            value);
    }
  };
  const auto two = [&](Figure a, Figure b, const char* name) {
    const auto get = reinterpret_cast<nvmlReturn_t (*)(nvmlDevice_t, unsigned*, unsigned*)>(
        dlsym(library_, name));
    unsigned x = 0, y = 0;
    if (!get || get(device, &x, &y) != NVML_SUCCESS) return;
    wire::set_figure(to, a, x);
    wire::set_figure(to, b, y);
  };

  nvmlUtilization_t use{};
  const auto rates = reinterpret_cast<decltype(&::nvmlDeviceGetUtilizationRates)>(
      dlsym(library_, "nvmlDeviceGetUtilizationRates"));
  if (rates && rates(device, &use) == NVML_SUCCESS) {
    wire::set_figure(to, Figure::kGpuUtilization, use.gpu);
    wire::set_figure(to, Figure::kMemoryUtilization, use.memory);
  }
  unsigned degrees = 0;
  const auto temperature = reinterpret_cast<decltype(&::nvmlDeviceGetTemperature)>(
      dlsym(library_, "nvmlDeviceGetTemperature"));
  if (temperature && temperature(device, NVML_TEMPERATURE_GPU, &degrees) == NVML_SUCCESS)
    wire::set_figure(to, Figure::kTemperature, degrees);
  two(Figure::kEncoderUtilization, Figure::kEncoderPeriod, "nvmlDeviceGetEncoderUtilization");
  two(Figure::kDecoderUtilization, Figure::kDecoderPeriod, "nvmlDeviceGetDecoderUtilization");
  four(Figure::kThresholdShutdown, "nvmlDeviceGetTemperatureThreshold");
  one(Figure::kPower, "nvmlDeviceGetPowerUsage");
  one(Figure::kPowerEnforced, "nvmlDeviceGetEnforcedPowerLimit");
  one(Figure::kPowerLimit, "nvmlDeviceGetPowerManagementLimit");
  one(Figure::kPowerDefault, "nvmlDeviceGetPowerManagementDefaultLimit");
  two(Figure::kPowerLeast, Figure::kPowerMost, "nvmlDeviceGetPowerManagementLimitConstraints");
  one(Figure::kPowerManaged, "nvmlDeviceGetPowerManagementMode");
  wide(Figure::kEnergy, "nvmlDeviceGetTotalEnergyConsumption");
  four(Figure::kClockGraphics, "nvmlDeviceGetClockInfo");
  four(Figure::kMostGraphics, "nvmlDeviceGetMaxClockInfo");
  four(Figure::kApplicationGraphics, "nvmlDeviceGetApplicationsClock");
  four(Figure::kDefaultGraphics, "nvmlDeviceGetDefaultApplicationsClock");
  wide(Figure::kClockReasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  wide(Figure::kClockReasonsKnown, "nvmlDeviceGetSupportedClocksThrottleReasons");
  one(Figure::kPerformanceState, "nvmlDeviceGetPerformanceState");
  one(Figure::kFan, "nvmlDeviceGetFanSpeed");
  one(Figure::kFans, "nvmlDeviceGetNumFans");
  one(Figure::kPcieGeneration, "nvmlDeviceGetCurrPcieLinkGeneration");
  one(Figure::kPcieGenerationMost, "nvmlDeviceGetMaxPcieLinkGeneration");
  one(Figure::kPcieGenerationGpu, "nvmlDeviceGetGpuMaxPcieLinkGeneration");
  one(Figure::kPcieWidth, "nvmlDeviceGetCurrPcieLinkWidth");
  one(Figure::kPcieWidthMost, "nvmlDeviceGetMaxPcieLinkWidth");
  one(Figure::kPcieReplays, "nvmlDeviceGetPcieReplayCounter");
  one(Figure::kPersistence, "nvmlDeviceGetPersistenceMode");
}

namespace {

void gpu_figures(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& ask = d.fixed<wire::GpuFiguresAsk>();
  if (!d.ok() || ask.device >= s.vgpus.size())
    return s.reject("GpuFigures names a vGPU that the session does not have");
  static NodeNvml node(s.driver.path);
  reply.put(node.figures(uuid_text(s.vgpus[ask.device]->gpu->uuid)));
}

}  // namespace

void add_node_nvml_handlers(DispatchTable& t) { t[wire::kGpuFigures].run = gpu_figures; }

}  // namespace sluice::worker
