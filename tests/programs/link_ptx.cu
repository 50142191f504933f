// SPDX-License-Identifier: Apache-2.0
// The driver's linker: two pieces of PTX that need one another, one of them from a file, a limit on
// registers, and what is said of PTX that is wrong.
#include <cuda.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "check_driver.h"

static const char kHead[] = ".version 7.0\n.target sm_75\n.address_size 64\n";
static const char kHelper[] = R"(
.visible .global .align 4 .u32 bias = 7;
.visible .func (.param .b32 out) twice(.param .b32 in)
{
  .reg .b32 %r<4>;
  ld.param.u32 %r0, [in];
  ld.global.u32 %r1, [bias];
  mad.lo.u32 %r2, %r0, 2, %r1;
  st.param.b32 [out], %r2;
  ret;
}
)";
static const char kKernel[] = R"(
.extern .func (.param .b32 out) twice(.param .b32 in);
.visible .entry fill(.param .u64 to)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [to];
  mov.u32 %r0, %tid.x;
  {
    .param .b32 in;
    .param .b32 out;
    st.param.b32 [in], %r0;
    call (out), twice, (in);
    ld.param.b32 %r1, [out];
  }
  mul.wide.u32 %rd1, %r0, 4;
  add.s64 %rd2, %rd0, %rd1;
  st.global.u32 [%rd2], %r1;
  ret;
}
)";

struct Link {
  CUlinkState state = nullptr;
  char error[4096] = "";
  CUjit_option options[3] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                             CU_JIT_MAX_REGISTERS};
  void* values[3] = {error, reinterpret_cast<void*>(sizeof error), reinterpret_cast<void*>(24)};
  Link() { REQUIRE_DRIVER(cuLinkCreate(3, options, values, &state)); }
  CUresult add(const std::string& ptx, const char* name) {
    return cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char*>(ptx.c_str()), ptx.size() + 1,
                         name, 0, nullptr, nullptr);
  }
};

int main() {
  REQUIRE(cudaFree(nullptr));
  const std::string helper = std::string(kHead) + kHelper, kernel = std::string(kHead) + kKernel;
  char name[] = "/tmp/sluice-link-XXXXXX";
  const int file = mkstemp(name);
  std::ofstream(name) << helper;
  Link link;
  std::printf("kernel: %d\n", link.add(kernel, "kernel.ptx"));
  std::printf("helper: %d\n",
              cuLinkAddFile(link.state, CU_JIT_INPUT_PTX, name, 0, nullptr, nullptr));
  close(file);
  unlink(name);
  void* image = nullptr;
  size_t bytes = 0;
  std::printf("complete: %d\n", cuLinkComplete(link.state, &image, &bytes));
  std::printf("a cubin: %s\n", bytes > 4 && !std::memcmp(image,
                                                         "\x7f"
                                                         "ELF",
                                                         4)
                                   ? "yes"
                                   : "no");
  CUmodule module;
  CUfunction function;
  REQUIRE_DRIVER(cuModuleLoadData(&module, image));
  REQUIRE_DRIVER(cuLinkDestroy(link.state));
  REQUIRE_DRIVER(cuModuleGetFunction(&function, module, "fill"));
  int registers = 0;
  REQUIRE_DRIVER(cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  std::printf("at most 24 registers: %s\n", registers <= 24 ? "yes" : "no");
  unsigned *device, host[8];
  REQUIRE(cudaMalloc(&device, sizeof host));
  void* arguments[] = {&device};
  REQUIRE_DRIVER(cuLaunchKernel(function, 1, 1, 1, 8, 1, 1, 0, nullptr, arguments, nullptr));
  REQUIRE(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
  for (const unsigned v : host) std::printf("%u ", v);
  std::printf("\n");

  Link half;
  std::printf("kernel alone: %d\n", half.add(kernel, "kernel.ptx"));
  std::printf("complete: %s\n", cuLinkComplete(half.state, &image, &bytes) ? "refused" : "done");
  std::printf("names what is missing: %s\n", std::strstr(half.error, "twice") ? "yes" : "no");
  REQUIRE_DRIVER(cuLinkDestroy(half.state));

  Link wrong;
  std::printf("wrong PTX: %d\n", wrong.add(std::string(kHead) + "nonsense", "wrong.ptx"));
  std::printf("says something: %s\n", wrong.error[0] ? "yes" : "no");
  REQUIRE_DRIVER(cuLinkDestroy(wrong.state));
  return 0;
}
