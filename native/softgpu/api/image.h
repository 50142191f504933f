// SPDX-License-Identifier: Apache-2.0
// Loading images for modules and libraries: options, files and the JIT error log.
#pragma once

#include <memory>
#include <string>

#include "softgpu/api/api.h"
#include "softgpu/runtime/module.h"

namespace sluice::softgpu {

// Where a caller of cuModuleLoadDataEx wants to read what went wrong.
struct JitLog {
  char* text = nullptr;
  size_t size = 0;
  void** size_slot = nullptr;  // receives the bytes that were written

  static JitLog from(unsigned count, const CUjit_option* options, void** values);
  void write(const std::string& message) const;
};

CUresult read_file(const char* path, std::string& content);

// Loads an image into the context; `module` is set on success.
CUresult load_image(Context& context, const void* image, const JitLog& log,
                    std::shared_ptr<LoadedModule>& module);

}  // namespace sluice::softgpu
