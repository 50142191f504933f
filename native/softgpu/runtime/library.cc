// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/library.h"

#include <unordered_map>

namespace sluice::softgpu {
namespace {

struct LibraryTable {
  std::mutex mutex;
  std::unordered_map<const void*, std::shared_ptr<Library>> libraries;
  std::unordered_map<const void*, Library*> kernels;
};

LibraryTable& library_table() {
  static auto* all = new LibraryTable;
  return *all;
}

}  // namespace

Library::~Library() {
  for (auto& [context, module] : modules_) {
    std::shared_ptr<LoadedModule> held = module.lock();
    if (!held) continue;
    held->context().synchronize();
    retract_module(held.get());
    held->context().remove_module(held.get());
  }
}

std::shared_ptr<LoadedModule> Library::in(Context& context, LoadFailure& failure) {
  std::lock_guard lock(mutex_);
  std::weak_ptr<LoadedModule>& slot = modules_[context.id()];
  if (std::shared_ptr<LoadedModule> held = slot.lock()) return held;
  std::shared_ptr<LoadedModule> module = LoadedModule::load(context, ptx_, failure);
  if (!module) return nullptr;
  publish_module(module);
  for (const auto& kernel : kernels_) {
    for (const auto& [key, value] : kernel->attributes) {
      if (key.first != context.device().ordinal) continue;
      if (key.second == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        module->kernel(kernel->name)->settings.max_dynamic_shared = value;
      }
    }
  }
  slot = module;
  context.add_module(module);
  return module;
}

void Library::learn(const LoadedModule& module) {
  std::lock_guard lock(mutex_);
  if (!kernels_.empty()) return;
  std::lock_guard table_lock(library_table().mutex);
  for (KernelFunction* function : module.kernels()) {
    auto kernel = std::make_unique<LibraryKernel>();
    kernel->library = this;
    kernel->name = function->function->name;
    library_table().kernels[kernel.get()] = this;
    kernels_.push_back(std::move(kernel));
  }
}

LibraryKernel* Library::kernel(const std::string& name) {
  std::lock_guard lock(mutex_);
  for (const auto& kernel : kernels_) {
    if (kernel->name == name) return kernel.get();
  }
  return nullptr;
}

std::vector<LibraryKernel*> Library::kernels() {
  std::lock_guard lock(mutex_);
  std::vector<LibraryKernel*> all;
  all.reserve(kernels_.size());
  for (const auto& kernel : kernels_) all.push_back(kernel.get());
  return all;
}

std::shared_ptr<Library> library_from(CUlibrary handle) {
  std::lock_guard lock(library_table().mutex);
  auto found = library_table().libraries.find(handle);
  return found == library_table().libraries.end() ? nullptr : found->second;
}

std::shared_ptr<Library> library_of(CUkernel handle) {
  std::lock_guard lock(library_table().mutex);
  auto found = library_table().kernels.find(handle);
  if (found == library_table().kernels.end()) return nullptr;
  auto library = library_table().libraries.find(found->second);
  return library == library_table().libraries.end() ? nullptr : library->second;
}

void register_library(const std::shared_ptr<Library>& library) {
  std::lock_guard lock(library_table().mutex);
  library_table().libraries[library.get()] = library;
}

bool unregister_library(CUlibrary handle) {
  std::shared_ptr<Library> ended;  // its modules end outside the lock
  std::lock_guard lock(library_table().mutex);
  auto found = library_table().libraries.find(handle);
  if (found == library_table().libraries.end()) return false;
  ended = std::move(found->second);
  library_table().libraries.erase(found);
  std::erase_if(library_table().kernels,
                [&](const auto& entry) { return entry.second == ended.get(); });
  return true;
}

KernelFunction* launchable(Context& context, CUfunction handle, CUresult& why) {
  why = CUDA_ERROR_INVALID_HANDLE;
  if (KernelFunction* function = function_from(handle)) {
    return &function->module->context() == &context ? function : nullptr;
  }
  std::shared_ptr<Library> library = library_of(reinterpret_cast<CUkernel>(handle));
  if (!library) return nullptr;
  LoadFailure failure;
  std::shared_ptr<LoadedModule> module = library->in(context, failure);
  if (!module) {
    why = failure.result;
    return nullptr;
  }
  return module->kernel(reinterpret_cast<LibraryKernel*>(handle)->name);
}

}  // namespace sluice::softgpu
