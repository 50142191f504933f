// SPDX-License-Identifier: Apache-2.0
// The module that a library has in a context: its functions and globals are the library's own.
#include <cuda.h>

#include "check_driver.h"

static const char kCode[] = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 bias = 7;
.visible .entry fill(.param .u64 to)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [to];
  mov.u32 %r0, %tid.x;
  ld.global.u32 %r1, [bias];
  add.u32 %r2, %r0, %r1;
  mul.wide.u32 %rd1, %r0, 4;
  add.s64 %rd2, %rd0, %rd1;
  st.global.u32 [%rd2], %r2;
  ret;
}
)";

static void run(const char* by, CUfunction function, unsigned* device) {
  unsigned host[4];
  REQUIRE(cudaMemset(device, 0, sizeof host));
  void* arguments[] = {&device};
  REQUIRE_DRIVER(cuLaunchKernel(function, 1, 1, 1, 4, 1, 1, 0, nullptr, arguments, nullptr));
  REQUIRE(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
  std::printf("%s: %u %u %u %u\n", by, host[0], host[1], host[2], host[3]);
}

static const char* yes(bool what) { return what ? "yes" : "no"; }

int main() {
  REQUIRE(cudaFree(nullptr));
  unsigned* device;
  REQUIRE(cudaMalloc(&device, 4 * sizeof(unsigned)));
  CUlibrary library;
  REQUIRE_DRIVER(cuLibraryLoadData(&library, kCode, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUmodule module = nullptr, again = nullptr, owner = nullptr;
  REQUIRE_DRIVER(cuLibraryGetModule(&module, library));
  REQUIRE_DRIVER(cuLibraryGetModule(&again, library));
  std::printf("the same each time: %s\n", yes(module == again));

  CUfunction function;
  REQUIRE_DRIVER(cuModuleGetFunction(&function, module, "fill"));
  REQUIRE_DRIVER(cuFuncGetModule(&owner, function));
  std::printf("its function knows it: %s\n", yes(owner == module));
  run("as it was", function, device);

  CUdeviceptr of_module = 0, of_library = 0;
  size_t bytes = 0;
  REQUIRE_DRIVER(cuModuleGetGlobal(&of_module, &bytes, module, "bias"));
  REQUIRE_DRIVER(cuLibraryGetGlobal(&of_library, &bytes, library, "bias"));
  std::printf("one global: %s, %zu bytes\n", yes(of_module == of_library), bytes);
  const unsigned bias = 100;
  REQUIRE_DRIVER(cuMemcpyHtoD(of_module, &bias, sizeof bias));
  CUkernel kernel;
  CUfunction of_kernel;
  REQUIRE_DRIVER(cuLibraryGetKernel(&kernel, library, "fill"));
  REQUIRE_DRIVER(cuKernelGetFunction(&of_kernel, kernel));
  run("by the module", function, device);
  run("by the library", of_kernel, device);

  unsigned count = 0;
  REQUIRE_DRIVER(cuModuleGetFunctionCount(&count, module));
  std::printf("%u function\n", count);
  std::printf("no such: %d\n", cuModuleGetFunction(&function, module, "absent"));
  REQUIRE_DRIVER(cuLibraryUnload(library));
  REQUIRE(cudaFree(device));
  return 0;
}
