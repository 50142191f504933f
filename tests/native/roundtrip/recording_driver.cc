// SPDX-License-Identifier: Apache-2.0
#include "tests/native/roundtrip/recording_driver.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "worker/link_kernel.h"
#include "worker/shared_event.h"

namespace sluice::test {

namespace {

constexpr size_t kMostCopied = 64 << 20;  // larger copies are checked, not made

// cuMemCreate and its like take integers that are no addresses under the same C type.
bool has_plain_integers(const char* function) {
  static const std::set<std::string> names{"cuMemCreate",
                                           "cuMemMap",
                                           "cuMemRelease",
                                           "cuMemAddressReserve",
                                           "cuMemImportFromShareableHandle",
                                           "cuMemExportToShareableHandle",
                                           "cuMemGetAllocationPropertiesFromHandle",
                                           "cuTexObjectDestroy",
                                           "cuSurfObjectDestroy"};
  return names.contains(function);
}

}  // namespace

void SparseMemory::write(uint64_t address, const void* data, size_t n) {
  const auto* from = static_cast<const std::byte*>(data);
  while (n) {
    auto& page = pages_[address / kPage];
    page.resize(kPage);
    const size_t at = address % kPage, piece = std::min(n, static_cast<size_t>(kPage - at));
    std::memcpy(page.data() + at, from, piece);
    address += piece, from += piece, n -= piece;
  }
}

std::vector<std::byte> SparseMemory::read(uint64_t address, size_t n) const {
  std::vector<std::byte> all(n);
  for (size_t done = 0; done < n;) {
    const uint64_t from = address + done;
    const size_t at = from % kPage, piece = std::min(n - done, static_cast<size_t>(kPage - at));
    if (const auto it = pages_.find(from / kPage); it != pages_.end())
      std::memcpy(all.data() + done, it->second.data() + at, piece);
    done += piece;
  }
  return all;
}

Recording& Recording::get() {
  static Recording recording;
  return recording;
}

std::vector<const Call*> Recording::calls_of(const char* name) const {
  std::vector<const Call*> found;
  for (const Call& c : calls)
    if (std::strcmp(c.name, name) == 0) found.push_back(&c);
  return found;
}

const Call& Recording::only(const char* name) const {
  const auto found = calls_of(name);
  if (found.size() == 1) return *found[0];
  throw std::runtime_error(std::string(name) + " was called " + std::to_string(found.size()) +
                           " times");
}

bool Recording::Ranges::holds(uint64_t address, uint64_t bytes) const {
  auto it = all.upper_bound(address);
  if (it == all.begin()) return false;
  --it;
  const uint64_t at = address - it->first;
  return at < it->second && bytes <= it->second - at;
}

bool Recording::device_range(uint64_t address, uint64_t bytes) const {
  return windows.holds(address, bytes) || globals.holds(address, bytes) ||
         taken.holds(address, bytes) || host.holds(address, bytes);
}

bool Recording::host_range(const void* at, uint64_t bytes) const {
  const auto address = reinterpret_cast<uint64_t>(at);
  if (host.holds(address, bytes) || pinned.holds(address, bytes)) return true;
  const uint64_t offset = address - reinterpret_cast<uint64_t>(frame.data());
  return offset < frame.size() && bytes <= frame.size() - offset;
}

void Recording::violation(const char* function, const std::string& what) {
  violations.push_back(std::string(function) + " was given " + what);
}

void Recording::note(const char* name, std::vector<std::vector<std::byte>> arguments) {
  if (std::strcmp(name, "cuCtxSetCurrent") != 0) calls.push_back({name, std::move(arguments)});
}

void Recording::check(const char* function, CUstream stream) {
  if (stream != CU_STREAM_LEGACY && !streams.contains(stream))
    violation(function, "a foreign stream");
}
void Recording::check(const char* function, CUevent event) {
  if (!events.contains(event)) violation(function, "a foreign event");
}
void Recording::check(const char* function, CUmodule module) {
  if (!modules.contains(module)) violation(function, "a foreign module");
}
void Recording::check(const char* function, CUlibrary library) {
  if (!libraries.contains(library)) violation(function, "a foreign library");
}
void Recording::check(const char* function, CUfunction f) {
  if (!functions.contains(f)) violation(function, "a foreign function");
}
void Recording::check(const char* function, CUkernel kernel) {
  if (!functions.contains(kernel)) violation(function, "a foreign kernel");
}
void Recording::check(const char* function, CUcontext context) {
  if (!contexts.contains(context)) violation(function, "a foreign context");
}
void Recording::check(const char* function, CUgraph graph) {
  if (!graphs.contains(graph)) violation(function, "a foreign graph");
}
void Recording::check(const char* function, CUgraphNode node) {
  if (!graph_nodes.contains(node)) violation(function, "a foreign graph node");
}
void Recording::check(const char* function, CUgraphExec exec) {
  if (!graph_execs.contains(exec)) violation(function, "a foreign executable graph");
}
void Recording::check(const char* function, CUdeviceptr address) {
  if (std::strcmp(function, "cuMemcpyAsync") == 0) return;  // one side is the worker's own memory
  if (has_plain_integers(function)) return;
  if (!device_range(address, 1) && !marks.holds(address, 8) && !pinned.holds(address, 8))
    violation(function, "a foreign address");
}

void Recording::reset(worker::Driver* driver) {
  calls.clear();
  violations.clear();
  memory.clear();
  status = CUDA_SUCCESS;
  frame = {};
  params = {{0, 8}, {8, 8}, {16, 4}};
  symbol = {};
  globals_of.clear();
  for (Ranges* r : {&windows, &globals, &host, &marks}) r->all.clear();
  for (auto* live : {&streams, &events, &modules, &libraries, &functions, &contexts, &own_kernels})
    live->clear();
  allocations.clear();
  for (auto* live : {&graphs, &graph_execs}) live->clear();
  graph_nodes.clear();
#define SLUICE_DRIVER_FUNCTION(name)                        \
  driver->name = &Recorded<#name, decltype(&::name)>::call; \
  SLUICE_ON(name) = nullptr;
#include "abi/driver_functions.inc"
#undef SLUICE_DRIVER_FUNCTION
  install_objects();
  install_memory();
  install_copies();
  install_graphs();
  install_arrays();
  install_green();
}

void Recording::install_objects() {
  SLUICE_ON(cuDriverGetVersion) = [](int* v) { return *v = 13000, CUDA_SUCCESS; };
  SLUICE_ON(cuDeviceGetAttribute) = [](int* v, CUdevice_attribute a, CUdevice) {
    // Large enough for every launch that a test makes up.
    *v = a >= CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X && a <= CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z
             ? 65535
             : 1000 + static_cast<int>(a);
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuDeviceCanAccessPeer) = [](int* can, CUdevice a, CUdevice b) {
    return *can = a != b, CUDA_SUCCESS;
  };
  SLUICE_ON(cuDeviceGetP2PAttribute) = [](int* value, CUdevice_P2PAttribute a, CUdevice, CUdevice) {
    return *value = a == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 3 : 1, CUDA_SUCCESS;
  };
  // Its stream comes to it at once, as all streams here have nothing before it.
  SLUICE_ON(cuLaunchHostFunc) = [](CUstream, CUhostFn function, void* data) {
    function(data);
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuCtxGetStreamPriorityRange) = [](int* least, int* greatest) {
    *least = 0, *greatest = -5;
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuGetErrorName) = [](CUresult, const char** text) {
    return *text = "error", CUDA_SUCCESS;
  };
  SLUICE_ON(cuGetErrorString) = [](CUresult, const char** text) {
    return *text = "text", CUDA_SUCCESS;
  };
  SLUICE_ON(cuStreamCreateWithPriority) = [this](CUstream* s, unsigned, int) {
    return *s = mint<CUstream>(streams), CUDA_SUCCESS;
  };
  SLUICE_ON(cuStreamDestroy_v2) = [this](CUstream s) { return streams.erase(s), status; };
  SLUICE_ON(cuEventCreate) = [this](CUevent* e, unsigned) {
    return *e = mint<CUevent>(events), CUDA_SUCCESS;
  };
  SLUICE_ON(cuEventDestroy_v2) = [this](CUevent e) { return events.erase(e), status; };
  SLUICE_ON(cuModuleLoadDataEx) = [this](CUmodule* m, const void*, unsigned, CUjit_option*,
                                         void**) {
    return *m = mint<CUmodule>(modules), CUDA_SUCCESS;
  };
  SLUICE_ON(cuLibraryLoadData) = [this](CUlibrary* l, const void*, CUjit_option*, void**, unsigned,
                                        CUlibraryOption*, void**, unsigned) {
    return *l = mint<CUlibrary>(libraries), CUDA_SUCCESS;
  };
  SLUICE_ON(cuLinkCreate_v2) = [](unsigned, CUjit_option*, void**, CUlinkState* state) {
    return *state = reinterpret_cast<CUlinkState>(0x11), CUDA_SUCCESS;
  };
  SLUICE_ON(cuLinkComplete) = [](CUlinkState, void** image, size_t* bytes) {
    static char linked[] = "linked";
    *image = linked;
    *bytes = sizeof linked;
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuModuleGetFunction) = [this](CUfunction* f, CUmodule, const char*) {
    return *f = mint<CUfunction>(functions), CUDA_SUCCESS;
  };
  SLUICE_ON(cuLibraryGetModule) = [this](CUmodule* m, CUlibrary) {
    return *m = mint<CUmodule>(modules), CUDA_SUCCESS;
  };
  SLUICE_ON(cuLibraryGetKernel) = [this](CUkernel* k, CUlibrary, const char*) {
    return *k = mint<CUkernel>(functions), CUDA_SUCCESS;
  };
  SLUICE_ON(cuKernelGetFunction) = [this](CUfunction* f, CUkernel) {
    own_kernels.insert(*f = mint<CUfunction>(functions));
    return CUDA_SUCCESS;
  };
  // Local memory would be charged.
  const auto attribute = [](int* v, CUfunction_attribute a) {
    *v = a == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES ? 0 : 65536 + static_cast<int>(a);
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuFuncGetAttribute) = [attribute](int* v, CUfunction_attribute a, CUfunction) {
    return attribute(v, a);
  };
  SLUICE_ON(cuKernelGetAttribute) = [attribute](int* v, CUfunction_attribute a, CUkernel,
                                                CUdevice) { return attribute(v, a); };
  // The driver reads as many bytes as the function takes.
  const auto launch = [this](const char* f, CUfunction function, void** extra) {
    if (own_kernels.contains(function)) {
      const auto& copy = *static_cast<const worker::LinkKernel::Copy*>(extra[1]);
      if (copy.bytes &&
          !device_range(copy.address, (copy.bytes / copy.width - 1) * copy.pitch + copy.width))
        violation(f, "a rectangle beside the session's memory");
      return status;
    }
    const void* at = nullptr;
    size_t bytes = 0, takes = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
      if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) at = extra[1];
      if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<size_t*>(extra[1]);
    }
    for (const auto& [offset, size] : params) takes = std::max(takes, offset + size);
    if (bytes < takes) violation(f, "fewer parameters than the function takes");
    if (bytes && !host_range(at, bytes)) violation(f, "parameters outside the command");
    return status;
  };
  SLUICE_ON(cuLaunchKernel) = [=](CUfunction f, unsigned, unsigned, unsigned, unsigned, unsigned,
                                  unsigned, unsigned, CUstream, void**,
                                  void** extra) { return launch("cuLaunchKernel", f, extra); };
  SLUICE_ON(cuLaunchKernelEx) = [=, this](const CUlaunchConfig* c, CUfunction f, void**,
                                          void** extra) {
    check("cuLaunchKernelEx", c->hStream);
    return launch("cuLaunchKernelEx", f, extra);
  };
  const auto param = [this](size_t i, size_t* offset, size_t* size) {
    if (i >= params.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = params[i].first, *size = params[i].second;
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuFuncGetParamInfo) = [=](CUfunction, size_t i, size_t* o, size_t* n) {
    return param(i, o, n);
  };
  SLUICE_ON(cuKernelGetParamInfo) = [=](CUkernel, size_t i, size_t* o, size_t* n) {
    return param(i, o, n);
  };
  const auto global = [this](CUdeviceptr* address, size_t* bytes, const void* code,
                             uint64_t offset) {
    *address = symbol.address + offset, *bytes = symbol.bytes;
    globals.add(*address, symbol.bytes);
    globals_of[code].insert(*address);
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuModuleGetGlobal_v2) = [=](CUdeviceptr* a, size_t* n, CUmodule m, const char*) {
    return global(a, n, m, 0);
  };
  SLUICE_ON(cuLibraryGetGlobal) = [=](CUdeviceptr* a, size_t* n, CUlibrary l, const char*) {
    return global(a, n, l, kLibrarySymbols);
  };
  const auto unload = [this](std::set<const void*>& live, const void* code) {
    live.erase(code);
    for (uint64_t address : globals_of[code]) globals.all.erase(address);
    globals_of.erase(code);
    return status;
  };
  SLUICE_ON(cuModuleUnload) = [=, this](CUmodule m) { return unload(modules, m); };
  SLUICE_ON(cuLibraryUnload) = [=, this](CUlibrary l) { return unload(libraries, l); };
}

void Recording::install_memory() {
  SLUICE_ON(cuMemAddressReserve) = [this](CUdeviceptr* got, size_t bytes, size_t, CUdeviceptr at,
                                          unsigned long long) {
    windows.add(*got = at, bytes);
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuMemCreate) = [this](CUmemGenericAllocationHandle* h, size_t,
                                  const CUmemAllocationProp*, unsigned long long) {
    allocations.insert(*h = next_ += 64);
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuMemImportFromShareableHandle) = [this](CUmemGenericAllocationHandle* h, void*,
                                                     CUmemAllocationHandleType) {
    allocations.insert(*h = next_ += 64);
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuMemExportToShareableHandle) = [](void* fd, CUmemGenericAllocationHandle,
                                               CUmemAllocationHandleType, unsigned long long) {
    *static_cast<int*>(fd) = memfd_create("exported", MFD_CLOEXEC);
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuMemMap) = [this](CUdeviceptr at, size_t bytes, size_t, CUmemGenericAllocationHandle h,
                               unsigned long long) {
    if (!windows.holds(at, bytes)) violation("cuMemMap", "addresses outside the windows");
    if (!allocations.contains(h)) violation("cuMemMap", "a foreign allocation");
    return status;
  };
  SLUICE_ON(cuMemUnmap) = [this](CUdeviceptr at, size_t bytes) {
    if (!windows.holds(at, bytes)) violation("cuMemUnmap", "addresses outside the windows");
    return status;
  };
  SLUICE_ON(cuMemRelease) = [this](CUmemGenericAllocationHandle h) {
    if (!allocations.erase(h)) violation("cuMemRelease", "a foreign allocation");
    return status;
  };
  SLUICE_ON(cuMemHostRegister_v2) = [this](void* at, size_t bytes, unsigned) {
    // Events that processes share: memory of the worker's own, written like marks.
    if (bytes == worker::EventRegion::kBytes) marks.add(at, bytes);
    if (!host_range(at, bytes) && !marks.holds(reinterpret_cast<uint64_t>(at), bytes))
      violation("cuMemHostRegister_v2", "foreign host memory");
    return status;
  };
  SLUICE_ON(cuMemHostGetDevicePointer_v2) = [](CUdeviceptr* p, void* at, unsigned) {
    return *p = reinterpret_cast<CUdeviceptr>(at), CUDA_SUCCESS;
  };
  SLUICE_ON(cuMemHostAlloc) = [this](void** at, size_t bytes, unsigned) {
    *at = std::malloc(bytes);
    pinned.add(*at, bytes);
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuMemFreeHost) = [this](void* at) {
    pinned.all.erase(reinterpret_cast<uint64_t>(at));
    std::free(at);
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuStreamWriteValue64_v2) = [this](CUstream, CUdeviceptr at, cuuint64_t value,
                                              unsigned) {
    if (marks.holds(at, 8))
      reinterpret_cast<std::atomic<uint64_t>*>(at)->store(value, std::memory_order_release);
    else if (!device_range(at, 8))
      violation("cuStreamWriteValue64_v2", "a foreign address");
    return status;
  };
}

void Recording::install_copies() {
  const auto device = [this](const char* f, uint64_t address, uint64_t bytes) {
    if (!device_range(address, bytes)) violation(f, "foreign device memory");
  };
  const auto in_process = [this](const char* f, const void* at, uint64_t bytes) {
    const bool ours = host_range(at, bytes);
    if (!ours) violation(f, "foreign host memory");
    return ours;
  };
  // Pinned memory is reached by the device under the same address.
  const auto store = [this](uint64_t to, const void* data, size_t n) {
    if (n > kMostCopied) return;
    if (host.holds(to, n))
      std::memmove(reinterpret_cast<void*>(to), data, n);
    else
      memory.write(to, data, n);
  };
  const auto load = [this](uint64_t from, size_t n) {
    if (n > kMostCopied) return std::vector<std::byte>();
    if (!host.holds(from, n)) return memory.read(from, n);
    const auto* at = reinterpret_cast<const std::byte*>(from);
    return std::vector<std::byte>(at, at + n);
  };
  // Between the device and memory of the worker's own, which nothing here knows.
  SLUICE_ON(cuMemcpyAsync) = [=, this](CUdeviceptr to, CUdeviceptr from, size_t n, CUstream) {
    if (device_range(to, n) == device_range(from, n))
      violation("cuMemcpyAsync", "two sides of one kind");
    const auto data = device_range(from, n) ? load(from, n) : std::vector<std::byte>();
    if (!device_range(from, n))
      store(to, reinterpret_cast<const void*>(from), n);
    else if (!data.empty())
      std::memcpy(reinterpret_cast<void*>(to), data.data(), data.size());
    return status;
  };
  SLUICE_ON(cuMemAlloc_v2) = [this](CUdeviceptr* at, size_t bytes) {
    *at = 0x7d0000000000 + (taken.all.size() << 32);
    taken.add(*at, bytes);
    return status;
  };
  SLUICE_ON(cuMemFree_v2) = [this](CUdeviceptr at) {
    if (!taken.all.erase(at)) violation("cuMemFree_v2", "what it never gave");
    return status;
  };
  SLUICE_ON(cuMemcpyHtoDAsync_v2) = [=, this](CUdeviceptr to, const void* from, size_t n,
                                              CUstream) {
    device("cuMemcpyHtoDAsync_v2", to, n);
    if (in_process("cuMemcpyHtoDAsync_v2", from, n)) store(to, from, n);
    return status;
  };
  SLUICE_ON(cuMemcpyDtoHAsync_v2) = [=, this](void* to, CUdeviceptr from, size_t n, CUstream) {
    device("cuMemcpyDtoHAsync_v2", from, n);
    if (!in_process("cuMemcpyDtoHAsync_v2", to, n)) return status;
    const auto data = load(from, n);
    if (!data.empty()) std::memcpy(to, data.data(), data.size());
    return status;
  };
  SLUICE_ON(cuMemcpyDtoDAsync_v2) = [=, this](CUdeviceptr to, CUdeviceptr from, size_t n,
                                              CUstream) {
    device("cuMemcpyDtoDAsync_v2", to, n);
    device("cuMemcpyDtoDAsync_v2", from, n);
    const auto data = load(from, n);
    store(to, data.data(), data.size());
    return status;
  };
  SLUICE_ON(cuMemcpy2DAsync_v2) = [=, this](const CUDA_MEMCPY2D* p, CUstream) {
    const char* f = "cuMemcpy2DAsync_v2";
    const uint64_t to_span = p->dstPitch * (p->Height - 1) + p->WidthInBytes;
    const uint64_t from_span = p->srcPitch * (p->Height - 1) + p->WidthInBytes;
    const bool to_host = p->dstMemoryType == CU_MEMORYTYPE_HOST;
    const bool from_host = p->srcMemoryType == CU_MEMORYTYPE_HOST;
    bool ours = true;
    if (to_host) ours &= in_process(f, p->dstHost, to_span);
    if (!to_host) device(f, p->dstDevice, to_span);
    if (from_host) ours &= in_process(f, p->srcHost, from_span);
    if (!from_host) device(f, p->srcDevice, from_span);
    if (!ours || p->WidthInBytes * p->Height > kMostCopied || p->Height > kMostCopied)
      return status;
    for (size_t row = 0; row < p->Height; ++row) {
      const auto data = load(
          (from_host ? reinterpret_cast<uint64_t>(p->srcHost) : p->srcDevice) + row * p->srcPitch,
          from_host ? 0 : p->WidthInBytes);
      const void* from = from_host ? static_cast<const char*>(p->srcHost) + row * p->srcPitch
                                   : static_cast<const void*>(data.data());
      if (to_host)
        std::memmove(static_cast<char*>(p->dstHost) + row * p->dstPitch, from, p->WidthInBytes);
      else
        store(p->dstDevice + row * p->dstPitch, from, p->WidthInBytes);
    }
    return status;
  };
  const auto rows = [=](const char* f, uint64_t at, size_t pitch, const void* element, size_t bytes,
                        size_t width, size_t height) {
    device(f, at, height > 1 ? pitch * (height - 1) + width * bytes : width * bytes);
    if (width > kMostCopied / 8 || height > kMostCopied / 8 || width * height > kMostCopied / 8)
      return;
    for (size_t row = 0; row < height; ++row)
      for (size_t i = 0; i < width; ++i) store(at + row * pitch + i * bytes, element, bytes);
  };
  SLUICE_ON(cuMemsetD8Async) = [=, this](CUdeviceptr at, unsigned char v, size_t n, CUstream) {
    return rows("cuMemsetD8Async", at, 0, &v, 1, n, 1), status;
  };
  SLUICE_ON(cuMemsetD16Async) = [=, this](CUdeviceptr at, unsigned short v, size_t n, CUstream) {
    return rows("cuMemsetD16Async", at, 0, &v, 2, n, 1), status;
  };
  SLUICE_ON(cuMemsetD32Async) = [=, this](CUdeviceptr at, unsigned v, size_t n, CUstream) {
    return rows("cuMemsetD32Async", at, 0, &v, 4, n, 1), status;
  };
  SLUICE_ON(cuMemsetD2D8Async) = [=, this](CUdeviceptr at, size_t p, unsigned char v, size_t w,
                                           size_t h, CUstream) {
    return rows("cuMemsetD2D8Async", at, p, &v, 1, w, h), status;
  };
  SLUICE_ON(cuMemsetD2D16Async) = [=, this](CUdeviceptr at, size_t p, unsigned short v, size_t w,
                                            size_t h, CUstream) {
    return rows("cuMemsetD2D16Async", at, p, &v, 2, w, h), status;
  };
  SLUICE_ON(cuMemsetD2D32Async) = [=, this](CUdeviceptr at, size_t p, unsigned v, size_t w,
                                            size_t h, CUstream) {
    return rows("cuMemsetD2D32Async", at, p, &v, 4, w, h), status;
  };
}

}  // namespace sluice::test
