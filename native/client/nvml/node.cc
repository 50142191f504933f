// SPDX-License-Identifier: Apache-2.0
// What the node's NVML says of the GPU that a vGPU lies on: its utilization, temperature, power and
// clocks are the whole GPU's, of all the sessions on it. A round trip each, but for what is less
// than a tenth of a second old; of a vGPU that is only looked at, what the view has.
#include "client/nvml/session.h"

using namespace sluice::nvml;
using sluice::wire::Figure;
using sluice::wire::GpuFigures;

namespace {

nvmlReturn_t figures_of(nvmlDevice_t device, GpuFigures* figures) {
  Vgpu vgpu;
  if (const nvmlReturn_t e = enter(device, &vgpu); e != NVML_SUCCESS) return e;
  if (!vgpu.session) {
    *figures = vgpu.viewed().figures;
    return NVML_SUCCESS;
  }
  return vgpu.session->figures(vgpu.place, figures) ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

template <class T>
nvmlReturn_t figure(nvmlDevice_t device, Figure which, T* to) {
  GpuFigures figures;
  if (const nvmlReturn_t e = figures_of(device, &figures); e != NVML_SUCCESS) return e;
  if (!to) return NVML_ERROR_INVALID_ARGUMENT;
  uint64_t value;
  if (!sluice::wire::get_figure(figures, which, &value)) return NVML_ERROR_NOT_SUPPORTED;
  *to = static_cast<T>(value);
  return NVML_SUCCESS;
}

// One of four that follow one another.
template <class Kind, class T>
nvmlReturn_t figure_of_four(nvmlDevice_t device, Figure first, Kind kind, T* to) {
  const auto i = static_cast<uint32_t>(kind);
  if (i >= 4) return i < 64 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
  return figure(device, static_cast<Figure>(static_cast<uint32_t>(first) + i), to);
}

template <class T>
nvmlReturn_t two_figures(nvmlDevice_t device, Figure a, Figure b, T* x, T* y) {
  if (!y) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t e = figure(device, a, x);
  return e == NVML_SUCCESS ? figure(device, b, y) : e;
}

}  // namespace

namespace sluice::nvml {
nvmlReturn_t video_clock_limit(nvmlDevice_t device, unsigned* mhz) {
  return figure(device, Figure::kMostVideo, mhz);
}
}  // namespace sluice::nvml

extern "C" {

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* use) {
  return two_figures(device, Figure::kGpuUtilization, Figure::kMemoryUtilization,
                     use ? &use->gpu : nullptr, use ? &use->memory : nullptr);
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned* percent,
                                             unsigned* period) {
  return two_figures(device, Figure::kEncoderUtilization, Figure::kEncoderPeriod, percent, period);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned* percent,
                                             unsigned* period) {
  return two_figures(device, Figure::kDecoderUtilization, Figure::kDecoderPeriod, percent, period);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned* degrees) {
  if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  return figure(device, Figure::kTemperature, degrees);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t* temperature) {
  if (!temperature || temperature->sensorType != NVML_TEMPERATURE_GPU)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (temperature->version != (sizeof *temperature | 1u << 24))
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return figure(device, Figure::kTemperature, &temperature->temperature);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device,
                                               nvmlTemperatureThresholds_t threshold,
                                               unsigned* degrees) {
  return figure_of_four(device, Figure::kThresholdShutdown, threshold, degrees);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned* milliwatts) {
  return figure(device, Figure::kPower, milliwatts);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned* milliwatts) {
  return figure(device, Figure::kPowerEnforced, milliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned* milliwatts) {
  return figure(device, Figure::kPowerLimit, milliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned* milliwatts) {
  return figure(device, Figure::kPowerDefault, milliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned* least,
                                                          unsigned* most) {
  return two_figures(device, Figure::kPowerLeast, Figure::kPowerMost, least, most);
}

nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return figure(device, Figure::kPowerManaged, mode);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device,
                                                 unsigned long long* millijoules) {
  return figure(device, Figure::kEnergy, millijoules);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned* mhz) {
  return figure_of_four(device, Figure::kClockGraphics, type, mhz);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type,
                                            unsigned* mhz) {
  return figure_of_four(device, Figure::kApplicationGraphics, type, mhz);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type,
                                                   unsigned* mhz) {
  return figure_of_four(device, Figure::kDefaultGraphics, type, mhz);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id,
                                unsigned* mhz) {
  switch (id) {
    case NVML_CLOCK_ID_CURRENT:
      return nvmlDeviceGetClockInfo(device, type, mhz);
    case NVML_CLOCK_ID_APP_CLOCK_TARGET:
      return nvmlDeviceGetApplicationsClock(device, type, mhz);
    case NVML_CLOCK_ID_APP_CLOCK_DEFAULT:
      return nvmlDeviceGetDefaultApplicationsClock(device, type, mhz);
    default:
      return unsupported();
  }
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long* bits) {
  return figure(device, Figure::kClockReasons, bits);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                       unsigned long long* bits) {
  return figure(device, Figure::kClockReasons, bits);
}

nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device,
                                                      unsigned long long* bits) {
  return figure(device, Figure::kClockReasonsKnown, bits);
}

nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device,
                                                         unsigned long long* bits) {
  return figure(device, Figure::kClockReasonsKnown, bits);
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t* state) {
  return figure(device, Figure::kPerformanceState, state);
}

nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, nvmlPstates_t* state) {
  return figure(device, Figure::kPerformanceState, state);
}

nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned* percent) {
  return figure(device, Figure::kFan, percent);
}

nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned* count) {
  return figure(device, Figure::kFans, count);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned* generation) {
  return figure(device, Figure::kPcieGeneration, generation);
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned* generation) {
  return figure(device, Figure::kPcieGenerationMost, generation);
}

nvmlReturn_t nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t device, unsigned* generation) {
  return figure(device, Figure::kPcieGenerationGpu, generation);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned* width) {
  return figure(device, Figure::kPcieWidth, width);
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned* width) {
  return figure(device, Figure::kPcieWidthMost, width);
}

nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned* count) {
  return figure(device, Figure::kPcieReplays, count);
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return figure(device, Figure::kPersistence, mode);
}

}  // extern "C"
