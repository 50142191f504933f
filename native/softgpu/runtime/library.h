// SPDX-License-Identifier: Apache-2.0
// Libraries (CUlibrary) and their kernels (CUkernel): an image that belongs to no context and is
// loaded into each one that uses it, on first use. Owned by a table of live libraries.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "softgpu/runtime/context.h"
#include "softgpu/runtime/module.h"

namespace sluice::softgpu {

class Library;

struct LibraryKernel {
  Library* library = nullptr;
  std::string name;
  std::map<std::pair<int, int>, int> attributes;  // set per device: (device, attribute) -> value
};

class Library {
 public:
  explicit Library(std::string ptx) : ptx_(std::move(ptx)) {}
  ~Library();

  // The module of this library in the context; null: `failure` says why.
  std::shared_ptr<LoadedModule> in(Context& context, LoadFailure& failure);
  // Fills the list of kernels from the first module that is loaded.
  void learn(const LoadedModule& module);
  LibraryKernel* kernel(const std::string& name);
  std::vector<LibraryKernel*> kernels();
  std::mutex& mutex() { return mutex_; }

 private:
  const std::string ptx_;
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<LoadedModule>> modules_;  // by context id
  std::vector<std::unique_ptr<LibraryKernel>> kernels_;
};

std::shared_ptr<Library> library_from(CUlibrary handle);
std::shared_ptr<Library> library_of(CUkernel handle);  // null if it is no live kernel
void register_library(const std::shared_ptr<Library>& library);
bool unregister_library(CUlibrary handle);

// The CUfunction behind a handle for a launch: a CUfunction, or a CUkernel in the current context.
KernelFunction* launchable(Context& context, CUfunction handle, CUresult& why);

}  // namespace sluice::softgpu
