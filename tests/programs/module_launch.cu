// SPDX-License-Identifier: Apache-2.0
// The driver API by hand: PTX text into a module, functions and a global from it, launches with
// pointer parameters and with a packed buffer. Arguments: number of elements, a file of PTX
// instead.
#include <cuda.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "check_driver.h"

static const char kPtx[] = R"(
.version 7.0
.target sm_75
.address_size 64

.visible .global .align 4 .u32 bias = 5;

.visible .entry axpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 count)
{
  .reg .pred %p;
  .reg .f32 %f<4>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<6>;
  ld.param.u64 %rd0, [x];
  ld.param.u64 %rd1, [y];
  ld.param.f32 %f0, [a];
  ld.param.u32 %r0, [count];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  setp.ge.u32 %p, %r4, %r0;
  @%p bra done;
  mul.wide.u32 %rd2, %r4, 4;
  add.s64 %rd3, %rd0, %rd2;
  add.s64 %rd4, %rd1, %rd2;
  ld.global.f32 %f1, [%rd3];
  ld.global.f32 %f2, [%rd4];
  fma.rn.f32 %f3, %f0, %f1, %f2;
  st.global.f32 [%rd4], %f3;
done:
  ret;
}

.visible .entry add_bias(.param .u64 out, .param .u32 value)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<1>;
  ld.param.u64 %rd0, [out];
  ld.param.u32 %r0, [value];
  ld.global.u32 %r1, [bias];
  add.u32 %r2, %r0, %r1;
  st.global.u32 [%rd0], %r2;
  ret;
}
)";

int main(int argc, char** argv) {
  const int count = argument(argc, argv, 1, 3000);
  std::string ptx = kPtx;
  if (argc > 2) {
    std::ostringstream text;
    text << std::ifstream(argv[2]).rdbuf();
    ptx = text.str();
  }
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction axpy, add_bias;
  REQUIRE_DRIVER(cuInit(0));
  REQUIRE_DRIVER(cuDeviceGet(&device, 0));
  REQUIRE_DRIVER(cuDevicePrimaryCtxRetain(&context, device));
  REQUIRE_DRIVER(cuCtxSetCurrent(context));
  REQUIRE_DRIVER(cuModuleLoadData(&module, ptx.c_str()));
  REQUIRE_DRIVER(cuModuleGetFunction(&axpy, module, "axpy"));
  REQUIRE_DRIVER(cuModuleGetFunction(&add_bias, module, "add_bias"));

  bool right = true;
  CUfunction none = nullptr;
  right &= fact("a missing function is not found",
                cuModuleGetFunction(&none, module, "no_such_kernel") == CUDA_ERROR_NOT_FOUND);

  std::vector<float> x(count), y(count), expected(count);
  uint32_t state = 3;
  for (int i = 0; i < count; ++i) {
    x[i] = static_cast<float>(next_number(state) % 64);
    y[i] = static_cast<float>(next_number(state) % 64);
    expected[i] = 2.5f * x[i] + y[i];
  }
  CUdeviceptr device_x, device_y;
  REQUIRE_DRIVER(cuMemAlloc(&device_x, count * sizeof(float)));
  REQUIRE_DRIVER(cuMemAlloc(&device_y, count * sizeof(float)));
  REQUIRE_DRIVER(cuMemcpyHtoD(device_x, x.data(), count * sizeof(float)));
  REQUIRE_DRIVER(cuMemcpyHtoD(device_y, y.data(), count * sizeof(float)));
  float a = 2.5f;
  unsigned elements = count;
  void* parameters[] = {&device_x, &device_y, &a, &elements};
  REQUIRE_DRIVER(
      cuLaunchKernel(axpy, (count + 127) / 128, 1, 1, 128, 1, 1, 0, nullptr, parameters, nullptr));
  REQUIRE_DRIVER(cuMemcpyDtoH(y.data(), device_y, count * sizeof(float)));
  int wrong = 0;
  for (int i = 0; i < count; ++i) wrong += y[i] != expected[i];
  std::printf("elements %d, wrong %d, checksum %016llx\n", count, wrong,
              static_cast<unsigned long long>(checksum(y.data(), count * sizeof(float))));

  CUdeviceptr bias = 0;
  size_t bias_size = 0;
  REQUIRE_DRIVER(cuModuleGetGlobal(&bias, &bias_size, module, "bias"));
  unsigned value = 0;
  REQUIRE_DRIVER(cuMemcpyDtoH(&value, bias, sizeof(value)));
  std::printf("bias of %zu bytes holds %u\n", bias_size, value);
  right &= bias_size == 4 && value == 5;
  value = 100;
  REQUIRE_DRIVER(cuMemcpyHtoD(bias, &value, sizeof(value)));
  struct {
    CUdeviceptr out;
    unsigned value;
  } packed = {device_x, 11};
  size_t packed_size = 12;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &packed_size, CU_LAUNCH_PARAM_END};
  REQUIRE_DRIVER(cuLaunchKernel(add_bias, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  REQUIRE_DRIVER(cuCtxSynchronize());
  REQUIRE_DRIVER(cuMemcpyDtoH(&value, device_x, sizeof(value)));
  std::printf("value plus bias %u\n", value);
  right &= value == 111;

  REQUIRE_DRIVER(cuMemFree(device_x));
  REQUIRE_DRIVER(cuMemFree(device_y));
  REQUIRE_DRIVER(cuModuleUnload(module));
  REQUIRE_DRIVER(cuDevicePrimaryCtxRelease(device));
  return right && wrong == 0 ? 0 : 1;
}
