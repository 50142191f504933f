// SPDX-License-Identifier: Apache-2.0
#include "softgpu/api/image.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

namespace sluice::softgpu {
JitLog JitLog::from(unsigned count, const CUjit_option* options, void** values) {
  JitLog log;
  for (unsigned i = 0; options && values && i < count; ++i) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) log.text = static_cast<char*>(values[i]);
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
      log.size = static_cast<unsigned>(reinterpret_cast<uintptr_t>(values[i]));
      log.size_slot = &values[i];
    }
    if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES) values[i] = nullptr;
  }
  return log;
}

void JitLog::write(const std::string& message) const {
  size_t written = 0;
  if (text && size != 0) {
    written = std::min(size - 1, message.size());
    std::memcpy(text, message.data(), written);
    text[written] = '\0';
  }
  if (size_slot) *size_slot = reinterpret_cast<void*>(written);
}

CUresult read_file(const char* path, std::string& content) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  content.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  // An image carries no length; what is read past a truncated file must be the end.
  content.append(16, '\0');
  return CUDA_SUCCESS;
}

CUresult load_image(Context& context, const void* image, const JitLog& log,
                    std::shared_ptr<LoadedModule>& module) {
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  std::string ptx;
  LoadFailure failure;
  if (!ptx_of_image(image, ptx, failure)) {
    log.write(failure.text);
    return failure.result;
  }
  context.printf_sink().flush();
  module = LoadedModule::load(context, ptx, failure);
  log.write(failure.text);
  if (!module) return failure.result;
  publish_module(module);
  return CUDA_SUCCESS;
}

}  // namespace sluice::softgpu
