// SPDX-License-Identifier: Apache-2.0
// A loaded module: its program, the device memory of its variables and its kernels as handles.
// Made from PTX text or a fat binary; owned by the context it was loaded into. A library
// (CUlibrary) keeps the image and loads it into each context that asks.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi/cuda_driver.h"
#include "softgpu/program/program.h"

namespace sluice::softgpu {

class Context;
class LoadedModule;
class Library;

// What cuFuncSetAttribute can change.
struct FunctionSettings {
  std::atomic<int> max_dynamic_shared{-1};  // -1: 48 KiB less the static part
  std::atomic<int> carveout{-1};
  std::atomic<int> cache_config{0};
};

// A kernel of a module: what a CUfunction points to.
struct KernelFunction {
  const Function* function = nullptr;
  LoadedModule* module = nullptr;
  FunctionSettings settings;
};

// What is wrong with an image, for the CUresult and the JIT error log.
struct LoadFailure {
  CUresult result = CUDA_SUCCESS;
  std::string text;
};

class LoadedModule : public std::enable_shared_from_this<LoadedModule> {
 public:
  // Loads PTX text into the context. Null: `failure` says why.
  static std::shared_ptr<LoadedModule> load(Context& context, const std::string& ptx,
                                            LoadFailure& failure);
  ~LoadedModule();
  LoadedModule(const LoadedModule&) = delete;
  LoadedModule& operator=(const LoadedModule&) = delete;

  Context& context() const { return context_; }
  const Program& program() const { return program_; }
  KernelFunction* kernel(const std::string& name) const;
  std::vector<KernelFunction*> kernels() const;
  const GlobalVariable* variable(const std::string& name) const { return program_.variable(name); }

 private:
  explicit LoadedModule(Context& context) : context_(context) {}
  Context& context_;
  Program program_;
  uintptr_t memory_ = 0;  // all .global and .const variables, one allocation
  std::vector<std::unique_ptr<KernelFunction>> kernels_;  // in the order of the PTX
};

// The PTX inside an image given to cuModuleLoadData or cuLibraryLoadData: text, fat binary or the
// wrapper that nvcc puts around one. False: `failure` says why there is none.
bool ptx_of_image(const void* image, std::string& ptx, LoadFailure& failure);

// Live modules by handle, for calls that name one.
std::shared_ptr<LoadedModule> module_from(CUmodule handle);
void publish_module(const std::shared_ptr<LoadedModule>& module);
void retract_module(const LoadedModule* module);

// A kernel handle: kernels of modules are CUfunctions from the start.
KernelFunction* function_from(CUfunction handle);
void register_function(KernelFunction* function);
void unregister_function(KernelFunction* function);

}  // namespace sluice::softgpu
