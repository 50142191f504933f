// SPDX-License-Identifier: Apache-2.0
// Figures by their numbers, several at once: those that there are functions for. Each says for
// itself whether it is known.
#include <chrono>

#include "client/nvml/session.h"

using namespace sluice::nvml;

namespace {

void answer(nvmlDevice_t device, nvmlFieldValue_t* field) {
  const auto number = [&](nvmlReturn_t (*function)(nvmlDevice_t, unsigned int*)) {
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->nvmlReturn = function(device, &field->value.uiVal);
  };
  switch (field->fieldId) {
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
      field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
      field->nvmlReturn = nvmlDeviceGetTotalEnergyConsumption(device, &field->value.ullVal);
      return;
    case NVML_FI_DEV_POWER_INSTANT:
    case NVML_FI_DEV_POWER_AVERAGE:
      return number(nvmlDeviceGetPowerUsage);
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT:
      return number(nvmlDeviceGetPowerManagementDefaultLimit);
    case NVML_FI_DEV_POWER_CURRENT_LIMIT:
      return number(nvmlDeviceGetPowerManagementLimit);
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
      return number(nvmlDeviceGetPcieReplayCounter);
    default:
      field->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

extern "C" nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count,
                                                 nvmlFieldValue_t* values) {
  uint32_t index;
  if (const nvmlReturn_t e = enter(device, &index); e != NVML_SUCCESS) return e;
  if (count < 0 || (count && !values)) return NVML_ERROR_INVALID_ARGUMENT;
  const auto micros = [](auto span) {
    return std::chrono::duration_cast<std::chrono::microseconds>(span).count();
  };
  for (int i = 0; i < count; ++i) {
    const auto begun = std::chrono::system_clock::now();
    values[i].value = {};
    answer(device, &values[i]);
    const auto done = std::chrono::system_clock::now();
    values[i].timestamp = micros(done.time_since_epoch());
    values[i].latencyUsec = micros(done - begun);
  }
  return NVML_SUCCESS;
}
