// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/module.h"

#include <new>
#include <unordered_map>
#include <unordered_set>

#include "softgpu/memory/allocations.h"
#include "softgpu/memory/range_map.h"
#include "softgpu/program/link.h"
#include "softgpu/ptx/parser.h"
#include "softgpu/runtime/context.h"
#include "softgpu/runtime/log.h"
#include "softgpu/runtime/mem_op.h"

namespace sluice::softgpu {
namespace {

struct FunctionTable {
  std::mutex mutex;
  std::unordered_set<const void*> live;
};

FunctionTable& function_table() {
  static auto* table = new FunctionTable;
  return *table;
}

struct ModuleTable {
  std::mutex mutex;
  std::unordered_map<const void*, std::weak_ptr<LoadedModule>> live;
};

ModuleTable& module_table() {
  static auto* modules = new ModuleTable;
  return *modules;
}

CUresult result_of(PtxError::Kind kind) {
  switch (kind) {
    case PtxError::Kind::kSyntax:
    case PtxError::Kind::kUnsupported:
      return CUDA_ERROR_INVALID_PTX;
    case PtxError::Kind::kVersion:
      return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    case PtxError::Kind::kTarget:
      return CUDA_ERROR_NO_BINARY_FOR_GPU;
    case PtxError::Kind::kUnresolved:
      return CUDA_ERROR_INVALID_PTX;
  }
  return CUDA_ERROR_INVALID_PTX;
}

constexpr uint32_t kTargetNumber = kComputeMajor * 10 + kComputeMinor;

}  // namespace

std::shared_ptr<LoadedModule> LoadedModule::load(Context& context, const std::string& ptx,
                                                 LoadFailure& failure) {
  const LoadStandsStill until_no_stream_waits(context);
  std::shared_ptr<LoadedModule> module(new LoadedModule(context));
  Device& device = context.device();
  try {
    std::unique_ptr<ptx::Module> parsed = ptx::parse(ptx);
    if (parsed->target_number > kTargetNumber) {
      throw PtxError(PtxError::Kind::kTarget, 0,
                     "the PTX is for " + parsed->target + ", this device runs up to sm_" +
                         std::to_string(kTargetNumber));
    }
    module->program_ = link_program(*parsed, [&](uint64_t bytes) {
      uintptr_t address = device.memory.allocate(bytes);
      if (address == 0) throw std::bad_alloc();
      module->memory_ = address;
      uint64_t bit = 1ull << device.ordinal;
      Allocations::instance().add(
          {address, bytes, AllocationKind::kGlobal, device.ordinal, &context});
      RangeMap::instance().grant(address, bytes, bit | device.peers.load(),
                                 bit | device.peers.load());
      return reinterpret_cast<uint8_t*>(address);
    });
  } catch (const PtxError& error) {
    failure.result = result_of(error.kind());
    failure.text = "ptx, line " + std::to_string(error.line()) + "; error : " + error.what();
    log(1, "%s", failure.text.c_str());
    return nullptr;
  } catch (const std::bad_alloc&) {
    failure.result = CUDA_ERROR_OUT_OF_MEMORY;
    failure.text = "out of memory";
    return nullptr;
  }
  std::vector<std::pair<uintptr_t, uintptr_t>> managed;
  for (const GlobalVariable& variable : module->program_.variables)
    if (variable.managed) managed.emplace_back(variable.address, variable.address + variable.size);
  if (!managed.empty()) Allocations::instance().set_managed(module->memory_, std::move(managed));
  for (const auto& function : module->program_.functions) {
    if (!function->entry) continue;
    auto kernel = std::make_unique<KernelFunction>();
    kernel->function = function.get();
    kernel->module = module.get();
    register_function(kernel.get());
    module->kernels_.push_back(std::move(kernel));
  }
  log(2, "module with %zu kernels loaded", module->kernels_.size());
  return module;
}

LoadedModule::~LoadedModule() {
  for (const auto& kernel : kernels_) unregister_function(kernel.get());
  if (memory_ == 0) return;
  auto known = Allocations::instance().remove(memory_);
  if (!known) return;  // freed with its context
  RangeMap::instance().retract(known->base, known->size);
  context_.device().memory.release(memory_);
}

KernelFunction* LoadedModule::kernel(const std::string& name) const {
  for (const auto& kernel : kernels_) {
    if (kernel->function->name == name) return kernel.get();
  }
  return nullptr;
}

std::vector<KernelFunction*> LoadedModule::kernels() const {
  std::vector<KernelFunction*> all;
  all.reserve(kernels_.size());
  for (const auto& kernel : kernels_) all.push_back(kernel.get());
  return all;
}

std::shared_ptr<LoadedModule> module_from(CUmodule handle) {
  std::lock_guard lock(module_table().mutex);
  auto found = module_table().live.find(handle);
  return found == module_table().live.end() ? nullptr : found->second.lock();
}

void publish_module(const std::shared_ptr<LoadedModule>& module) {
  std::lock_guard lock(module_table().mutex);
  std::erase_if(module_table().live, [](const auto& entry) { return entry.second.expired(); });
  module_table().live[module.get()] = module;
}

void retract_module(const LoadedModule* module) {
  std::lock_guard lock(module_table().mutex);
  module_table().live.erase(module);
}

KernelFunction* function_from(CUfunction handle) {
  std::lock_guard lock(function_table().mutex);
  return function_table().live.contains(handle) ? reinterpret_cast<KernelFunction*>(handle)
                                                : nullptr;
}

void register_function(KernelFunction* function) {
  std::lock_guard lock(function_table().mutex);
  function_table().live.insert(function);
}

void unregister_function(KernelFunction* function) {
  std::lock_guard lock(function_table().mutex);
  function_table().live.erase(function);
}

}  // namespace sluice::softgpu
