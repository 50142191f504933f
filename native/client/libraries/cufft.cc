// SPDX-License-Identifier: Apache-2.0
// cufftXt over one GPU. A plan that cufftXtSetGPUs gave one GPU is an ordinary plan; a descriptor
// is memory of the client's on that GPU, whose data are in their natural order before a transform
// and behind it. More GPUs than one are refused, by cufftXtSetGPUs.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "abi/cuda_driver.h"
#include "client/library/call.h"

extern "C" {
int32_t sluice_forward_cufftCreate(void*);
int32_t sluice_forward_cufftDestroy(int32_t);
int32_t sluice_forward_cufftMakePlan1d(int32_t, int32_t, int32_t, int32_t, void*);
int32_t sluice_forward_cufftMakePlan2d(int32_t, int32_t, int32_t, int32_t, void*);
int32_t sluice_forward_cufftMakePlan3d(int32_t, int32_t, int32_t, int32_t, int32_t, void*);
int32_t sluice_forward_cufftMakePlanMany(int32_t, int32_t, void*, void*, int32_t, int32_t, void*,
                                         int32_t, int32_t, int32_t, int32_t, void*);
int32_t sluice_forward_cufftMakePlanMany64(int32_t, int32_t, void*, void*, int64_t, int64_t, void*,
                                           int64_t, int64_t, int32_t, int64_t, void*);
int32_t sluice_forward_cufftXtMakePlanMany(int32_t, int32_t, void*, void*, int64_t, int64_t,
                                           int32_t, void*, int64_t, int64_t, int32_t, int64_t,
                                           void*, int32_t);
int32_t cufftSetWorkArea(int32_t, void*);
int32_t cufftXtExec(int32_t, void*, void*, int32_t);
int32_t cufftExecC2C(int32_t, void*, void*, int32_t);
int32_t cufftExecR2C(int32_t, void*, void*);
int32_t cufftExecC2R(int32_t, void*, void*);
int32_t cufftExecZ2Z(int32_t, void*, void*, int32_t);
int32_t cufftExecD2Z(int32_t, void*, void*);
int32_t cufftExecZ2D(int32_t, void*, void*);
}

namespace {

enum Result : int32_t {
  kSuccess = 0,
  kInvalidPlan = 1,
  kAllocFailed = 2,
  kInvalidType = 3,
  kInvalidValue = 4,
  kInternalError = 5,
  kExecFailed = 6,
  kInvalidDevice = 11,
  kNotSupported = 16,
};
enum Format : int32_t { kInput, kOutput, kInplace, kInplaceShuffled, kInputShuffled };
enum CopyType : int32_t { kToDevice, kToHost, kOnDevice };

// cudalibxt.h's structs, which programs look into.
constexpr int kMaxGpus = 64;
struct XtMemory {
  int32_t version = 0x01000000 + 13000;
  int32_t gpus = 1;
  int32_t gpu[kMaxGpus]{};
  void* data[kMaxGpus]{};
  size_t size[kMaxGpus]{};
  void* state = nullptr;
};
struct XtDescriptor {
  int32_t version = 0x01000000 + 13000;
  XtMemory* memory = nullptr;
  int32_t library = 0;  // LIB_FORMAT_CUFFT
  int32_t format = 0;
  void* plan = nullptr;
};

struct Plan {
  bool xt = false;  // one GPU was named
  bool made = false;
  int32_t gpu = 0;
  uint64_t in = 0, out = 0;  // bytes
};
struct Plans {
  std::mutex mutex;
  std::map<int32_t, Plan> all;
  std::map<XtDescriptor*, std::unique_ptr<XtDescriptor>> descriptors;
};
Plans& plans() {
  static Plans* p = new Plans;
  return *p;
}

// Of one side of a transform: its dimensions, how they lie, and how many.
struct Side {
  std::vector<int64_t> n;
  std::vector<int64_t> embed;  // empty: closely packed
  int64_t stride = 1, distance = 0;
  uint64_t bytes_each = 0;
  uint64_t bytes(int64_t batch) const {
    int64_t last = 0, step = embed.empty() ? 1 : stride, whole = 1;
    for (size_t i = n.size(); i-- > 0;) {
      last += (n[i] - 1) * step;
      whole *= n[i];
      step *= embed.empty() ? n[i] : embed[i];
    }
    const int64_t between = embed.empty() ? whole : distance;
    return static_cast<uint64_t>((batch - 1) * between + last + 1) * bytes_each;
  }
};

// cufftType: what it reads and writes.
bool sides_of(int32_t type, Side* in, Side* out, bool* half_in, bool* half_out) {
  *half_in = *half_out = false;
  switch (type) {
    case 0x29:  // C2C
      in->bytes_each = out->bytes_each = 8;
      return true;
    case 0x69:  // Z2Z
      in->bytes_each = out->bytes_each = 16;
      return true;
    case 0x2a:  // R2C
      in->bytes_each = 4, out->bytes_each = 8, *half_out = true;
      return true;
    case 0x6a:  // D2Z
      in->bytes_each = 8, out->bytes_each = 16, *half_out = true;
      return true;
    case 0x2c:  // C2R
      in->bytes_each = 8, out->bytes_each = 4, *half_in = true;
      return true;
    case 0x6c:  // Z2D
      in->bytes_each = 16, out->bytes_each = 8, *half_in = true;
      return true;
    default:
      return false;
  }
}

void note(int32_t plan, Side in, Side out, bool half_in, bool half_out, int64_t batch) {
  for (Side* side : {&in, &out})
    for (const int64_t n : side->n)
      if (n < 1) return;
  if (half_in) in.n.back() = in.n.back() / 2 + 1;
  if (half_out) out.n.back() = out.n.back() / 2 + 1;
  Plans& p = plans();
  std::lock_guard lock(p.mutex);
  const auto it = p.all.find(plan);
  if (it == p.all.end() || batch < 1) return;
  it->second.made = true;
  it->second.in = in.bytes(batch);
  it->second.out = out.bytes(batch);
}

template <class T>
std::vector<int64_t> numbers(const void* at, int32_t count) {
  const auto* from = static_cast<const T*>(at);
  return from ? std::vector<int64_t>(from, from + count) : std::vector<int64_t>{};
}

void note(int32_t plan, int32_t type, std::vector<int64_t> n, int64_t batch) {
  Side in, out;
  bool half_in, half_out;
  if (!sides_of(type, &in, &out, &half_in, &half_out)) return;
  in.n = out.n = std::move(n);
  note(plan, in, out, half_in, half_out, batch);
}

template <class T>
void note_many(int32_t plan, int32_t rank, const void* n, Side in, Side out, bool half_in,
               bool half_out, const void* inembed, const void* onembed, int64_t batch) {
  if (rank < 1 || rank > 3 || !n) return;
  in.n = out.n = numbers<T>(n, rank);
  in.embed = numbers<T>(inembed, rank);
  out.embed = numbers<T>(onembed, rank);
  if (in.embed.empty() || out.embed.empty()) in.embed.clear(), out.embed.clear();
  note(plan, in, out, half_in, half_out, batch);
}

// The plan, if it may work with descriptors.
bool xt_plan(int32_t plan, Plan* found) {
  Plans& p = plans();
  std::lock_guard lock(p.mutex);
  const auto it = p.all.find(plan);
  if (it == p.all.end() || !it->second.xt || !it->second.made) return false;
  *found = it->second;
  return true;
}

bool is_descriptor(const void* d) {
  Plans& p = plans();
  std::lock_guard lock(p.mutex);
  return p.descriptors.contains(static_cast<XtDescriptor*>(const_cast<void*>(d)));
}

XtMemory& memory_of(const void* d) { return *static_cast<const XtDescriptor*>(d)->memory; }

template <class Run>
int32_t execute(int32_t plan, void* in, void* out, Run&& run) {
  Plan p;
  if (!xt_plan(plan, &p)) return kInvalidPlan;
  if (!is_descriptor(in) || !is_descriptor(out)) return kInvalidValue;
  // Each side must hold what the plan reads and writes.
  if (memory_of(in).size[0] < p.in || memory_of(out).size[0] < p.out) return kInvalidValue;
  return run(memory_of(in).data[0], memory_of(out).data[0]);
}

}  // namespace

SLUICE_PUBLIC int32_t cufftCreate(int32_t* plan) {
  const int32_t status = sluice_forward_cufftCreate(plan);
  if (status != kSuccess) return status;
  Plans& p = plans();
  std::lock_guard lock(p.mutex);
  p.all[*plan] = {};
  return kSuccess;
}
SLUICE_PUBLIC int32_t cufftDestroy(int32_t plan) {
  {
    Plans& p = plans();
    std::lock_guard lock(p.mutex);
    p.all.erase(plan);
  }
  return sluice_forward_cufftDestroy(plan);
}
SLUICE_PUBLIC int32_t cufftMakePlan1d(int32_t plan, int32_t nx, int32_t type, int32_t batch,
                                      void* work) {
  const int32_t status = sluice_forward_cufftMakePlan1d(plan, nx, type, batch, work);
  if (status == kSuccess) note(plan, type, {nx}, batch);
  return status;
}
SLUICE_PUBLIC int32_t cufftMakePlan2d(int32_t plan, int32_t nx, int32_t ny, int32_t type,
                                      void* work) {
  const int32_t status = sluice_forward_cufftMakePlan2d(plan, nx, ny, type, work);
  if (status == kSuccess) note(plan, type, {nx, ny}, 1);
  return status;
}
SLUICE_PUBLIC int32_t cufftMakePlan3d(int32_t plan, int32_t nx, int32_t ny, int32_t nz,
                                      int32_t type, void* work) {
  const int32_t status = sluice_forward_cufftMakePlan3d(plan, nx, ny, nz, type, work);
  if (status == kSuccess) note(plan, type, {nx, ny, nz}, 1);
  return status;
}

namespace {

template <class T>
void note_many_of_type(int32_t plan, int32_t rank, const void* n, const void* inembed,
                       int64_t istride, int64_t idist, const void* onembed, int64_t ostride,
                       int64_t odist, int32_t type, int64_t batch) {
  Side in, out;
  bool half_in, half_out;
  if (!sides_of(type, &in, &out, &half_in, &half_out)) return;
  in.stride = istride, in.distance = idist, out.stride = ostride, out.distance = odist;
  note_many<T>(plan, rank, n, in, out, half_in, half_out, inembed, onembed, batch);
}

}  // namespace

SLUICE_PUBLIC int32_t cufftMakePlanMany(int32_t plan, int32_t rank, void* n, void* inembed,
                                        int32_t istride, int32_t idist, void* onembed,
                                        int32_t ostride, int32_t odist, int32_t type, int32_t batch,
                                        void* work) {
  const int32_t status = sluice_forward_cufftMakePlanMany(
      plan, rank, n, inembed, istride, idist, onembed, ostride, odist, type, batch, work);
  if (status == kSuccess)
    note_many_of_type<int32_t>(plan, rank, n, inembed, istride, idist, onembed, ostride, odist,
                               type, batch);
  return status;
}
SLUICE_PUBLIC int32_t cufftMakePlanMany64(int32_t plan, int32_t rank, void* n, void* inembed,
                                          int64_t istride, int64_t idist, void* onembed,
                                          int64_t ostride, int64_t odist, int32_t type,
                                          int64_t batch, void* work) {
  const int32_t status = sluice_forward_cufftMakePlanMany64(
      plan, rank, n, inembed, istride, idist, onembed, ostride, odist, type, batch, work);
  if (status == kSuccess)
    note_many_of_type<int64_t>(plan, rank, n, inembed, istride, idist, onembed, ostride, odist,
                               type, batch);
  return status;
}
SLUICE_PUBLIC int32_t cufftXtMakePlanMany(int32_t plan, int32_t rank, void* n, void* inembed,
                                          int64_t istride, int64_t idist, int32_t input,
                                          void* onembed, int64_t ostride, int64_t odist,
                                          int32_t output, int64_t batch, void* work,
                                          int32_t execution) {
  const int32_t status =
      sluice_forward_cufftXtMakePlanMany(plan, rank, n, inembed, istride, idist, input, onembed,
                                         ostride, odist, output, batch, work, execution);
  if (status != kSuccess) return status;
  // cudaDataType: CUDA_R_32F, R_64F, R_16F, R_16BF and their complex ones.
  const auto bytes = [](int32_t type) -> uint64_t {
    switch (type) {
      case 2:
      case 14:
        return 2;
      case 0:
      case 6:
      case 15:
        return 4;
      case 1:
      case 4:
        return 8;
      case 5:
        return 16;
      default:
        return 0;
    }
  };
  const auto is_real = [](int32_t type) {
    return type == 0 || type == 1 || type == 2 || type == 14;
  };
  Side in, out;
  in.bytes_each = bytes(input), out.bytes_each = bytes(output);
  if (!in.bytes_each || !out.bytes_each) return status;
  in.stride = istride, in.distance = idist, out.stride = ostride, out.distance = odist;
  note_many<int64_t>(plan, rank, n, in, out, is_real(output) && !is_real(input),
                     is_real(input) && !is_real(output), inembed, onembed, batch);
  return status;
}

SLUICE_PUBLIC int32_t cufftXtSetGPUs(int32_t plan, int32_t count, const int32_t* gpus) {
  if (count < 1 || !gpus) return kInvalidValue;
  if (count > 1) {
    sluice_library_note(
        "cufftXtSetGPUs: transforms over several GPUs are not supported; give the plan one GPU");
    return kNotSupported;
  }
  int devices = 0;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&devices) != CUDA_SUCCESS)
    return kInternalError;
  if (gpus[0] < 0 || gpus[0] >= devices) return kInvalidDevice;
  CUcontext context = nullptr;
  CUdevice current = 0;
  if (cuCtxGetCurrent(&context) == CUDA_SUCCESS && context &&
      cuCtxGetDevice(&current) != CUDA_SUCCESS)
    return kInternalError;
  if (gpus[0] != current) {
    sluice_library_note(
        "cufftXtSetGPUs: a plan's GPU must be the thread's current one; call cudaSetDevice before");
    return kNotSupported;
  }
  Plans& p = plans();
  std::lock_guard lock(p.mutex);
  const auto it = p.all.find(plan);
  if (it == p.all.end() || it->second.made) return kInvalidPlan;
  it->second.xt = true;
  it->second.gpu = gpus[0];
  return kSuccess;
}

SLUICE_PUBLIC int32_t cufftXtMalloc(int32_t plan, XtDescriptor** descriptor, int32_t format) {
  Plan p;
  if (!xt_plan(plan, &p)) return kInvalidPlan;
  if (!descriptor || format < kInput || format > kInputShuffled) return kInvalidValue;
  uint64_t bytes = std::max(p.in, p.out);  // in place, for both
  if (format == kInput || format == kInputShuffled) bytes = p.in;
  if (format == kOutput) bytes = p.out;
  CUdeviceptr memory = 0;
  if (cuMemAlloc_v2(&memory, bytes) != CUDA_SUCCESS) return kAllocFailed;
  auto made = std::make_unique<XtDescriptor>();
  made->memory = new XtMemory;
  made->memory->gpu[0] = p.gpu;
  made->memory->data[0] = reinterpret_cast<void*>(memory);
  made->memory->size[0] = bytes;
  made->format = format;
  *descriptor = made.get();
  Plans& all = plans();
  std::lock_guard lock(all.mutex);
  all.descriptors[*descriptor] = std::move(made);
  return kSuccess;
}

SLUICE_PUBLIC int32_t cufftXtFree(XtDescriptor* descriptor) {
  std::unique_ptr<XtDescriptor> gone;
  {
    Plans& all = plans();
    std::lock_guard lock(all.mutex);
    const auto it = all.descriptors.find(descriptor);
    if (it == all.descriptors.end()) return kInvalidValue;
    gone = std::move(it->second);
    all.descriptors.erase(it);
  }
  const std::unique_ptr<XtMemory> memory(gone->memory);
  const auto address = reinterpret_cast<CUdeviceptr>(memory->data[0]);
  return cuMemFree_v2(address) == CUDA_SUCCESS ? kSuccess : kInternalError;
}

// Waits for the transforms before, whichever stream they are on, and for the copy.
SLUICE_PUBLIC int32_t cufftXtMemcpy(int32_t plan, void* to, void* from, int32_t type) {
  Plan p;
  if (!xt_plan(plan, &p)) return kInvalidPlan;
  const bool to_device = type == kToDevice || type == kOnDevice;
  const bool from_device = type == kToHost || type == kOnDevice;
  if (!to_device && !from_device) return kInvalidValue;
  if (!to || !from || (to_device && !is_descriptor(to)) || (from_device && !is_descriptor(from)))
    return kInvalidValue;
  if (cuCtxSynchronize() != CUDA_SUCCESS) return kExecFailed;
  const auto address = [](const void* d) {
    return reinterpret_cast<CUdeviceptr>(memory_of(d).data[0]);
  };
  CUresult e;
  if (type == kToDevice)
    e = cuMemcpyHtoD_v2(address(to), from, memory_of(to).size[0]);
  else if (type == kToHost)
    e = cuMemcpyDtoH_v2(to, address(from), memory_of(from).size[0]);
  else
    e = cuMemcpyDtoD_v2(address(to), address(from),
                        std::min(memory_of(to).size[0], memory_of(from).size[0]));
  if (e == CUDA_SUCCESS && type == kOnDevice) e = cuCtxSynchronize();
  return e == CUDA_SUCCESS ? kSuccess : kInternalError;
}

SLUICE_PUBLIC int32_t cufftXtSetWorkArea(int32_t plan, void** areas) {
  return areas ? cufftSetWorkArea(plan, areas[0]) : kInvalidValue;
}

// What it tells of a plan is how its data are spread over several GPUs.
SLUICE_PUBLIC int32_t cufftXtQueryPlan(int32_t, void*, int32_t) {
  sluice_library_unsupported("cufftXtQueryPlan");
  return kNotSupported;
}

#define SLUICE_WITH_DIRECTION(name, run)                                                  \
  SLUICE_PUBLIC int32_t name(int32_t plan, void* in, void* out, int32_t direction) {      \
    return execute(plan, in, out,                                                         \
                   [&](void* from, void* to) { return run(plan, from, to, direction); }); \
  }
#define SLUICE_WITHOUT_DIRECTION(name, run)                                                   \
  SLUICE_PUBLIC int32_t name(int32_t plan, void* in, void* out) {                             \
    return execute(plan, in, out, [&](void* from, void* to) { return run(plan, from, to); }); \
  }
SLUICE_WITH_DIRECTION(cufftXtExecDescriptor, cufftXtExec)
SLUICE_WITH_DIRECTION(cufftXtExecDescriptorC2C, cufftExecC2C)
SLUICE_WITH_DIRECTION(cufftXtExecDescriptorZ2Z, cufftExecZ2Z)
SLUICE_WITHOUT_DIRECTION(cufftXtExecDescriptorR2C, cufftExecR2C)
SLUICE_WITHOUT_DIRECTION(cufftXtExecDescriptorC2R, cufftExecC2R)
SLUICE_WITHOUT_DIRECTION(cufftXtExecDescriptorD2Z, cufftExecD2Z)
SLUICE_WITHOUT_DIRECTION(cufftXtExecDescriptorZ2D, cufftExecZ2D)
