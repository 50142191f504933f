// SPDX-License-Identifier: Apache-2.0
// Libraries that the application loads itself. It may pass their kernels wherever a host stub is
// expected.
#include "client/cudart/state.h"

using namespace sluice::cudart;

extern "C" {

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code,
                                enum cudaJitOption* jitOptions, void** jitOptionsValues,
                                unsigned int numJitOptions, enum cudaLibraryOption* libraryOptions,
                                void** libraryOptionValues, unsigned int numLibraryOptions) {
  return forward(cuLibraryLoadData, library, code, reinterpret_cast<CUjit_option*>(jitOptions),
                 jitOptionsValues, numJitOptions,
                 reinterpret_cast<CUlibraryOption*>(libraryOptions), libraryOptionValues,
                 numLibraryOptions);
}

cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t* library, const char* fileName,
                                    enum cudaJitOption* jitOptions, void** jitOptionsValues,
                                    unsigned int numJitOptions,
                                    enum cudaLibraryOption* libraryOptions,
                                    void** libraryOptionValues, unsigned int numLibraryOptions) {
  return forward(cuLibraryLoadFromFile, library, fileName,
                 reinterpret_cast<CUjit_option*>(jitOptions), jitOptionsValues, numJitOptions,
                 reinterpret_cast<CUlibraryOption*>(libraryOptions), libraryOptionValues,
                 numLibraryOptions);
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) { return forward(cuLibraryUnload, library); }

cudaError_t cudaLibraryGetKernel(cudaKernel_t* pKernel, cudaLibrary_t library, const char* name) {
  return forward(cuLibraryGetKernel, pKernel, library, name);
}

cudaError_t cudaLibraryGetGlobal(void** dptr, size_t* bytes, cudaLibrary_t library,
                                 const char* name) {
  return forward(cuLibraryGetGlobal, address_slot(dptr), bytes, library, name);
}

cudaError_t cudaLibraryGetManaged(void** dptr, size_t* bytes, cudaLibrary_t library,
                                  const char* name) {
  return forward(cuLibraryGetManaged, address_slot(dptr), bytes, library, name);
}

cudaError_t cudaLibraryGetUnifiedFunction(void** fptr, cudaLibrary_t library, const char* symbol) {
  return forward(cuLibraryGetUnifiedFunction, fptr, library, symbol);
}

cudaError_t cudaLibraryGetKernelCount(unsigned int* count, cudaLibrary_t lib) {
  return forward(cuLibraryGetKernelCount, count, lib);
}

cudaError_t cudaLibraryEnumerateKernels(cudaKernel_t* kernels, unsigned int numKernels,
                                        cudaLibrary_t lib) {
  return forward(cuLibraryEnumerateKernels, kernels, numKernels, lib);
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attr,
                                            int value, int device) {
  CUdevice handle = 0;
  if (const cudaError_t error = device_handle(device, &handle); error != cudaSuccess) {
    return record(error);
  }
  return forward(cuKernelSetAttribute, static_cast<CUfunction_attribute>(attr), value, kernel,
                 handle);
}

}  // extern "C"
