// SPDX-License-Identifier: Apache-2.0
// The software GPU's parser of PTX, which runs where an embedder's checks may not.
#include "softgpu/ptx/parser.h"
#include "tests/native/fuzz/targets.h"

namespace sluice::fuzz {

namespace {

const char kKernel[] = R"(.version 8.0
.target sm_80
.address_size 64
.global .align 8 .u64 pointer = data;
.const .align 4 .f32 numbers[3] = {1.0, 0f3f800000, -2.5e1};
.global .align 4 .b8 data[16] = {1, 0x2, 03, 0b100, -5};
.extern .shared .align 16 .b8 room[];
.func (.param .b32 r) twice(.param .b32 x);
.visible .entry k(.param .u64 p, .param .u32 n) .maxntid 128, 1, 1
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [p];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, %tid.x;
  setp.ge.u32 %p1, %r1, 16;
  @%p1 bra done;
  ld.global.v2.u32 {%r2, %r3}, [%rd2+8];
  { .reg .b32 %q; add.s32 %q, %r2, -1; st.global.u32 [%rd2], %q; }
  call.uni (%r4), twice, (%r2);
$table: .branchtargets done, out;
  brx.idx %r1, $table;
out:
  bar.sync 0;
done:
  ret;
}
)";

const char kSmall[] =
    ".version 7.8\n.target sm_80, debug\n.address_size 64\n.file 1 \"a\\\"b.cu\"\n"
    ".visible .func (.param .b32 r) f(.param .b32 a) { ret; }\n"
    ".section .debug_str { .b8 1, 2 }\n";

bool read(std::span<const std::byte> input) {
  try {
    softgpu::ptx::parse(text_of(input));
    return true;
  } catch (const softgpu::PtxError&) {
    return false;  // the one exception that it may throw
  }
}

}  // namespace

std::vector<Target> softgpu_targets() {
  return {{"PTX", {kKernel, kSmall}, ".[]{}<>()@!%,;:=+-/*\"\\0x \n", read}};
}

}  // namespace sluice::fuzz
