// SPDX-License-Identifier: Apache-2.0
// The driver's functions that take or give back memory, as NVIDIA's libraries call them: charged
// before the driver is asked, kept when it has done it, given back when it has let
// go. What has no charge (memory of the worker's own, of another process) goes through.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "client/driver/image_size.h"
#include "wire/array_shape.h"
#include "worker/meter/charges.h"
#include "worker/meter/forward.h"

namespace sluice::meter {

namespace {

constexpr uint64_t kSmall = 1 << 20, kSlab = 2 << 20, kPiece = 512;

Charges& charges() {
  static Charges* const all =
      new Charges;  // never destroyed: libraries free memory while they unload
  return *all;
}

// As the driver rounds: large allocations to 2 MiB, small ones to the pieces that it cuts from
// such.
uint64_t rounded(uint64_t bytes) {
  const uint64_t to = bytes > kSmall ? kSlab : kPiece;
  return bytes > ~uint64_t{0} - to ? ~uint64_t{0} : (bytes + to - 1) / to * to;
}

int current_device() {
  CUdevice device = -1;
  return real.cuCtxGetDevice && real.cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : -1;
}

uint64_t name_of(const void* p) { return reinterpret_cast<uint64_t>(p); }
uint64_t name_of(CUdeviceptr p) { return p; }

// Charges, makes, and enters what `make` has left in *made.
template <class Made, class Make>
CUresult charged(Metered kind, Space space, uint64_t bytes, Made* made, Make make) {
  Charge charge(*host, kind, current_device(), bytes);
  if (!charge.granted()) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult e = make();
  if (e == CUDA_SUCCESS && made) charges().add(space, name_of(*made), std::move(charge));
  return e;
}

template <class Name, class End>
CUresult ended(Space space, Name name, End end) {
  auto charge = charges().take(space, name_of(name));
  const CUresult e = end();
  if (e != CUDA_SUCCESS && charge) charges().add(space, name_of(name), std::move(*charge));
  return e;
}

// What was laid is the worker's to end, whichever way a library frees it.
template <class End>
CUresult lifted(CUdeviceptr p, End end) {
  CUresult e;
  return host->lift(p, &e) ? e : end();
}

uint64_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR* d, uint32_t levels) {
  if (!d) return 0;
  const wire::ArrayShape shape{
      d->Width,       d->Height, d->Depth, static_cast<uint32_t>(d->Format),
      d->NumChannels, d->Flags,  levels};
  if (wire::sensible(shape)) return rounded(wire::array_bytes(shape));
  // Formats and kinds that our own clients are not offered: sixteen bytes an element, at most.
  uint64_t bytes = 32;
  for (const uint64_t n : {uint64_t{d->Width}, uint64_t{d->Height}, uint64_t{d->Depth}})
    if (__builtin_mul_overflow(bytes, std::max<uint64_t>(1, n), &bytes)) return ~uint64_t{0};
  return rounded(bytes);
}

// Code in a library's file is what the operator installed: finite, loaded kernel by kernel, and no
// tenant adds to it. Only what was made while the program runs is charged.
uint64_t code_bytes(const void* image) {
  Dl_info info;
  if (!image || dladdr(image, &info)) return 0;
  const void* start = nullptr;
  const size_t bytes = client::image_size(image, &start);
  return dladdr(start, &info) ? 0 : bytes;
}

template <class Handle, class Load>
CUresult load_code(Space space, const void* image, Handle* handle, Load load) {
  const uint64_t bytes = code_bytes(image);
  return bytes == 0 ? load() : charged(Metered::kCode, space, bytes, handle, load);
}

}  // namespace

namespace functions {

CUresult cuMemAlloc_v2(CUdeviceptr* p, size_t n) {
  return charged(Metered::kDevice, Space::kPointer, rounded(n), p, [&] {
    CUresult e = CUDA_ERROR_NOT_SUPPORTED;
    if (p && n > kSmall) e = host->lay(current_device(), rounded(n), p);
    return e == CUDA_ERROR_NOT_SUPPORTED ? real.cuMemAlloc_v2(p, n) : e;
  });
}
CUresult cuMemAllocPitch_v2(CUdeviceptr* p, size_t* pitch, size_t width, size_t height,
                            unsigned element) {
  // The driver's pitch is known when it has answered: rows of whole 512 bytes are what it gives.
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(rounded(width), height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  return charged(Metered::kDevice, Space::kPointer, rounded(bytes), p,
                 [&] { return real.cuMemAllocPitch_v2(p, pitch, width, height, element); });
}
CUresult cuMemAllocManaged(CUdeviceptr* p, size_t n, unsigned flags) {
  return charged(Metered::kDevice, Space::kPointer, rounded(n), p,
                 [&] { return real.cuMemAllocManaged(p, n, flags); });
}
CUresult cuMemFree_v2(CUdeviceptr p) {
  return ended(Space::kPointer, p, [&] { return lifted(p, [&] { return real.cuMemFree_v2(p); }); });
}

CUresult cuMemAllocAsync(CUdeviceptr* p, size_t n, CUstream stream) {
  return charged(Metered::kDevice, Space::kPointer, rounded(n), p,
                 [&] { return real.cuMemAllocAsync(p, n, stream); });
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* p, size_t n, CUstream stream) {
  return charged(Metered::kDevice, Space::kPointer, rounded(n), p,
                 [&] { return real.cuMemAllocAsync_ptsz(p, n, stream); });
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* p, size_t n, CUmemoryPool pool, CUstream stream) {
  return charged(Metered::kDevice, Space::kPointer, rounded(n), p,
                 [&] { return real.cuMemAllocFromPoolAsync(p, n, pool, stream); });
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* p, size_t n, CUmemoryPool pool,
                                      CUstream stream) {
  return charged(Metered::kDevice, Space::kPointer, rounded(n), p,
                 [&] { return real.cuMemAllocFromPoolAsync_ptsz(p, n, pool, stream); });
}
CUresult cuMemFreeAsync(CUdeviceptr p, CUstream stream) {
  return ended(Space::kPointer, p,
               [&] { return lifted(p, [&] { return real.cuMemFreeAsync(p, stream); }); });
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream stream) {
  return ended(Space::kPointer, p,
               [&] { return lifted(p, [&] { return real.cuMemFreeAsync_ptsz(p, stream); }); });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t n,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  const bool device = prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  Charge charge(*host, device ? Metered::kDevice : Metered::kHost,
                device ? prop->location.id : current_device(), n);
  if (!charge.granted()) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult e = real.cuMemCreate(handle, n, prop, flags);
  if (e == CUDA_SUCCESS) charges().add_allocation(*handle, std::move(charge));
  return e;
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const CUresult e = real.cuMemRetainAllocationHandle(handle, address);
  if (e == CUDA_SUCCESS) charges().retain(*handle, name_of(address));
  return e;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const Charges::Kept until_released = charges().release(handle);
  return real.cuMemRelease(handle);
}
CUresult cuMemMap(CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  const CUresult e = real.cuMemMap(p, n, offset, handle, flags);
  if (e == CUDA_SUCCESS) charges().map(p, n, handle);
  return e;
}
CUresult cuMemUnmap(CUdeviceptr p, size_t n) {
  const auto until_unmapped = charges().unmap(p, n);
  return real.cuMemUnmap(p, n);
}

CUresult cuMemAllocHost_v2(void** p, size_t n) {
  return charged(Metered::kHost, Space::kHost, rounded(n), p,
                 [&] { return real.cuMemAllocHost_v2(p, n); });
}
CUresult cuMemHostAlloc(void** p, size_t n, unsigned flags) {
  return charged(Metered::kHost, Space::kHost, rounded(n), p,
                 [&] { return real.cuMemHostAlloc(p, n, flags); });
}
CUresult cuMemFreeHost(void* p) {
  return ended(Space::kHost, p, [&] { return real.cuMemFreeHost(p); });
}
CUresult cuMemHostRegister_v2(void* p, size_t n, unsigned flags) {
  return charged(Metered::kHost, Space::kRegistered, rounded(n), &p,
                 [&] { return real.cuMemHostRegister_v2(p, n, flags); });
}
CUresult cuMemHostUnregister(void* p) {
  return ended(Space::kRegistered, p, [&] { return real.cuMemHostUnregister(p); });
}

CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* d) {
  CUDA_ARRAY3D_DESCRIPTOR whole{};
  if (d) {
    whole.Width = d->Width;
    whole.Height = d->Height;
    whole.Format = d->Format;
    whole.NumChannels = d->NumChannels;
  }
  return charged(Metered::kDevice, Space::kArray, bytes_of(d ? &whole : nullptr, 1), array,
                 [&] { return real.cuArrayCreate_v2(array, d); });
}
CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* d) {
  return charged(Metered::kDevice, Space::kArray, bytes_of(d, 1), array,
                 [&] { return real.cuArray3DCreate_v2(array, d); });
}
CUresult cuArrayDestroy(CUarray array) {
  return ended(Space::kArray, array, [&] { return real.cuArrayDestroy(array); });
}
CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* d,
                                unsigned levels) {
  return charged(Metered::kDevice, Space::kMipmapped, bytes_of(d, levels), array,
                 [&] { return real.cuMipmappedArrayCreate(array, d, levels); });
}
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  return ended(Space::kMipmapped, array, [&] { return real.cuMipmappedArrayDestroy(array); });
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return load_code(Space::kModule, image, module,
                   [&] { return real.cuModuleLoadData(module, image); });
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count,
                            CUjit_option* options, void** values) {
  return load_code(Space::kModule, image, module,
                   [&] { return real.cuModuleLoadDataEx(module, image, count, options, values); });
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load_code(Space::kModule, image, module,
                   [&] { return real.cuModuleLoadFatBinary(module, image); });
}
CUresult cuModuleUnload(CUmodule module) {
  return ended(Space::kModule, module, [&] { return real.cuModuleUnload(module); });
}
CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jit,
                           void** jit_values, unsigned jit_count, CUlibraryOption* options,
                           void** values, unsigned count) {
  return load_code(Space::kLibrary, code, library, [&] {
    return real.cuLibraryLoadData(library, code, jit, jit_values, jit_count, options, values,
                                  count);
  });
}
CUresult cuLibraryUnload(CUlibrary library) {
  return ended(Space::kLibrary, library, [&] { return real.cuLibraryUnload(library); });
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return charged(Metered::kStream, Space::kStream, 1, stream,
                 [&] { return real.cuStreamCreate(stream, flags); });
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return charged(Metered::kStream, Space::kStream, 1, stream,
                 [&] { return real.cuStreamCreateWithPriority(stream, flags, priority); });
}
CUresult cuStreamDestroy_v2(CUstream stream) {
  return ended(Space::kStream, stream, [&] { return real.cuStreamDestroy_v2(stream); });
}

// A library that sizes itself by what is free sees the slice.
CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  const CUresult e = real.cuMemGetInfo_v2(free_bytes, total_bytes);
  uint64_t left = 0, whole = 0;
  if (e != CUDA_SUCCESS || !host->left(current_device(), &left, &whole)) return e;
  if (free_bytes) *free_bytes = std::min<size_t>(*free_bytes, left);
  if (total_bytes) *total_bytes = whole;
  return e;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  const CUresult e = real.cuGetProcAddress_v2(symbol, function, version, flags, status);
  if (e != CUDA_SUCCESS || !*function) return e;
  const bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (void* ours = metered_answer(symbol, version, per_thread)) *function = ours;
  return e;
}
CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  const CUresult e = real.cuGetProcAddress(symbol, function, version, flags);
  if (e != CUDA_SUCCESS || !*function) return e;
  const bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (void* ours = metered_answer(symbol, version, per_thread)) *function = ours;
  return e;
}

}  // namespace functions

void* metered(const char* exported) {
#define METERED(name)                                                           \
  static_assert(std::is_same_v<decltype(&functions::name), decltype(&::name)>); \
  if (std::strcmp(exported, #name) == 0)                                        \
    return real.name ? reinterpret_cast<void*>(&functions::name) : nullptr;
  METERED(cuMemAlloc_v2)
  METERED(cuMemAllocPitch_v2)
  METERED(cuMemAllocManaged)
  METERED(cuMemFree_v2)
  METERED(cuMemAllocAsync)
  METERED(cuMemAllocAsync_ptsz)
  METERED(cuMemAllocFromPoolAsync)
  METERED(cuMemAllocFromPoolAsync_ptsz)
  METERED(cuMemFreeAsync)
  METERED(cuMemFreeAsync_ptsz)
  METERED(cuMemCreate)
  METERED(cuMemRetainAllocationHandle)
  METERED(cuMemRelease)
  METERED(cuMemMap)
  METERED(cuMemUnmap)
  METERED(cuMemAllocHost_v2)
  METERED(cuMemHostAlloc)
  METERED(cuMemFreeHost)
  METERED(cuMemHostRegister_v2)
  METERED(cuMemHostUnregister)
  METERED(cuArrayCreate_v2)
  METERED(cuArray3DCreate_v2)
  METERED(cuArrayDestroy)
  METERED(cuMipmappedArrayCreate)
  METERED(cuMipmappedArrayDestroy)
  METERED(cuModuleLoadData)
  METERED(cuModuleLoadDataEx)
  METERED(cuModuleLoadFatBinary)
  METERED(cuModuleUnload)
  METERED(cuLibraryLoadData)
  METERED(cuLibraryUnload)
  METERED(cuStreamCreate)
  METERED(cuStreamCreateWithPriority)
  METERED(cuStreamDestroy_v2)
  METERED(cuMemGetInfo_v2)
  METERED(cuGetProcAddress)
  METERED(cuGetProcAddress_v2)
#undef METERED
  return nullptr;
}

}  // namespace sluice::meter
