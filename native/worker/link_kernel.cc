// SPDX-License-Identifier: Apache-2.0
#include "worker/link_kernel.h"

#include <algorithm>

#include "worker/link_slots.h"

namespace sluice::worker {

namespace {

constexpr char kName[] = "sluice_link_copy";
constexpr uint32_t kThreads = 512;

// A block's first thread looks for the next piece, all of them move their part of it, and the first
// says so. Pieces come in order, whole rows or a part of one, so where a piece belongs is known
// here. In units of 16 bytes, 4 or 1, as far as all addresses allow; where they lie one behind the
// other, as most do, four at once. Nothing that the host writes is read twice from a cache:
// .volatile. Where things lie in a slot it knows of LinkSlots, and that a ring has four pieces.
static_assert(LinkSlots::kRing == 4);
constexpr char kText[] = R"(.version 6.4
.target sm_70
.address_size 64

.visible .entry sluice_link_copy(
    .param .u64 p_slot, .param .u64 p_memory, .param .u64 p_pitch, .param .u64 p_width,
    .param .u64 p_bytes, .param .u32 p_generation, .param .u32 p_into)
.maxntid 512, 1, 1
{
  .reg .pred %other, %last, %set, %part, %in, %end;
  .reg .b32 %generation, %flag, %me, %block, %blocks, %threads, %first, %stride;
  .reg .b32 %piece, %nap, %said, %count, %rows, %row_bytes, %bits, %unit, %shift, %units, %all;
  .reg .b32 %i, %r, %c, %x0, %x1, %x2, %x3, %y0, %y1, %y2, %y3;
  .reg .b32 %z0, %z1, %z2, %z3, %v0, %v1, %v2, %v3;
  .reg .b64 %slot, %memory, %pitch, %width, %bytes, %moved, %row, %column, %word, %entry;
  .reg .b64 %staging, %n, %left, %start, %wide, %here, %there, %from, %to, %mine, %step;
  .reg .b64 %from1, %from2, %from3, %to1, %to2, %to3;
  .shared .align 8 .b64 given[2];

  ld.param.u64 %slot, [p_slot];
  ld.param.u64 %memory, [p_memory];
  ld.param.u64 %pitch, [p_pitch];
  ld.param.u64 %width, [p_width];
  ld.param.u64 %bytes, [p_bytes];
  ld.param.u32 %generation, [p_generation];
  ld.param.u32 %flag, [p_into];
  setp.ne.u32 %in, %flag, 0;
  mov.u32 %me, %tid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.u32 %threads, %ntid.x;
  mad.lo.u32 %first, %block, %threads, %me;
  mul.lo.u32 %stride, %blocks, %threads;
  setp.ne.u32 %other, %me, 0;
  mul.wide.u32 %mine, %block, 8;
  add.u64 %mine, %mine, %slot;
  mov.u64 %moved, 0;
  mov.u64 %row, 0;
  mov.u64 %column, 0;
  mov.u32 %piece, 0;

NEXT:
  setp.ge.u64 %end, %moved, %bytes;
  @%end bra END;
  @%other bra GIVEN;
  mov.u32 %nap, 1000;
LOOK:
  ld.volatile.global.u64 %word, [%slot+8];
  mov.b64 {%count, %said}, %word;
  setp.ne.u32 %end, %said, %generation;
  @%end bra STOP;
  setp.ne.u32 %set, %count, %piece;
  @%set bra TAKE;
  nanosleep.u32 %nap;
  shl.b32 %nap, %nap, 1;
  min.u32 %nap, %nap, 32000;
  bra LOOK;
STOP:
  mov.u64 %staging, 0;
  mov.u64 %n, 0;
  bra GIVE;
TAKE:
  membar.sys;
  and.b32 %c, %piece, 3;
  mul.wide.u32 %entry, %c, 16;
  add.u64 %entry, %entry, %slot;
  ld.volatile.global.u64 %staging, [%entry+64];
  ld.volatile.global.u64 %n, [%entry+72];
GIVE:
  st.shared.u64 [given], %staging;
  st.shared.u64 [given+8], %n;
GIVEN:
  barrier.sync 0;
  ld.shared.u64 %staging, [given];
  ld.shared.u64 %n, [given+8];
  setp.eq.u64 %end, %staging, 0;
  @%end bra END;

  sub.u64 %left, %width, %column;
  setp.le.u64 %part, %n, %left;
  cvt.u32.u64 %row_bytes, %n;
  mov.u32 %rows, 1;
  mad.lo.u64 %start, %row, %pitch, %memory;
  add.u64 %start, %start, %column;
  or.b64 %wide, %start, %staging;
  @%part bra UNITS;
  cvt.u32.u64 %c, %width;
  div.u32 %rows, %row_bytes, %c;
  mov.u32 %row_bytes, %c;
  or.b64 %wide, %wide, %pitch;
UNITS:
  cvt.u32.u64 %bits, %wide;
  or.b32 %bits, %bits, %row_bytes;
  mov.u32 %shift, 4;
  and.b32 %c, %bits, 15;
  setp.eq.u32 %set, %c, 0;
  @%set bra MOVE;
  and.b32 %c, %bits, 3;
  setp.eq.u32 %set, %c, 0;
  selp.b32 %shift, 2, 0, %set;
MOVE:
  shr.u32 %units, %row_bytes, %shift;
  mul.lo.u32 %all, %units, %rows;
  setp.eq.u32 %set, %shift, 4;
  setp.eq.u32 %last, %shift, 0;
  mov.u32 %i, %first;
  @!%set bra UNIT;
  setp.ne.u32 %end, %rows, 1;
  setp.ne.and.u64 %end, %pitch, %width, %end;
  @%end bra UNIT;
  mul.wide.u32 %from, %first, 16;
  add.u64 %to, %start, %from;
  add.u64 %from, %staging, %from;
  mul.wide.u32 %wide, %stride, 16;
  selp.b64 %here, %from, %to, %in;
  selp.b64 %to, %to, %from, %in;
  mov.u64 %from, %here;
STRAIGHT:
  mad.lo.u32 %c, %stride, 3, %i;
  setp.ge.u32 %end, %c, %all;
  @%end bra UNIT;
  add.u64 %from1, %from, %wide;
  add.u64 %from2, %from1, %wide;
  add.u64 %from3, %from2, %wide;
  add.u64 %to1, %to, %wide;
  add.u64 %to2, %to1, %wide;
  add.u64 %to3, %to2, %wide;
  ld.volatile.global.v4.u32 {%x0, %x1, %x2, %x3}, [%from];
  ld.volatile.global.v4.u32 {%y0, %y1, %y2, %y3}, [%from1];
  ld.volatile.global.v4.u32 {%z0, %z1, %z2, %z3}, [%from2];
  ld.volatile.global.v4.u32 {%v0, %v1, %v2, %v3}, [%from3];
  st.global.v4.u32 [%to], {%x0, %x1, %x2, %x3};
  st.global.v4.u32 [%to1], {%y0, %y1, %y2, %y3};
  st.global.v4.u32 [%to2], {%z0, %z1, %z2, %z3};
  st.global.v4.u32 [%to3], {%v0, %v1, %v2, %v3};
  add.u64 %from, %from3, %wide;
  add.u64 %to, %to3, %wide;
  add.u32 %i, %c, %stride;
  bra STRAIGHT;
UNIT:
  setp.ge.u32 %end, %i, %all;
  @%end bra MOVED;
  div.u32 %r, %i, %units;
  mul.lo.u32 %c, %r, %units;
  sub.u32 %c, %i, %c;
  cvt.u64.u32 %here, %c;
  shl.b64 %here, %here, %shift;
  cvt.u64.u32 %wide, %r;
  mad.lo.u64 %here, %wide, %pitch, %here;
  add.u64 %here, %here, %start;
  cvt.u64.u32 %there, %i;
  shl.b64 %there, %there, %shift;
  add.u64 %there, %there, %staging;
  selp.b64 %from, %there, %here, %in;
  selp.b64 %to, %here, %there, %in;
  add.u32 %i, %i, %stride;
  @%set bra SIXTEEN;
  @%last bra ONE;
  ld.volatile.global.u32 %x0, [%from];
  st.global.u32 [%to], %x0;
  bra UNIT;
SIXTEEN:
  ld.volatile.global.v4.u32 {%x0, %x1, %x2, %x3}, [%from];
  st.global.v4.u32 [%to], {%x0, %x1, %x2, %x3};
  bra UNIT;
ONE:
  ld.volatile.global.u8 %x0, [%from];
  st.global.u8 [%to], %x0;
  bra UNIT;

MOVED:
  membar.sys;
  barrier.sync 0;
  add.u64 %moved, %moved, %n;
  add.u32 %piece, %piece, 1;
  cvt.u64.u32 %step, %rows;
  @!%part bra ROWS;
  add.u64 %column, %column, %n;
  setp.lt.u64 %set, %column, %width;
  @%set bra SAY;
  mov.u64 %column, 0;
ROWS:
  add.u64 %row, %row, %step;
SAY:
  @%other bra NEXT;
  mov.b64 %word, {%piece, %generation};
  st.volatile.global.u64 [%mine+128], %word;
  bra NEXT;
END:
  ret;
}
)";

}  // namespace

std::unique_ptr<LinkKernel> LinkKernel::load(const Driver& driver,
                                             std::vector<std::unique_ptr<Vgpu>>& vgpus,
                                             std::string* why) {
  std::unique_ptr<LinkKernel> made(new LinkKernel(driver));
  CUresult e = CUDA_SUCCESS;
  for (size_t i = 0; i < vgpus.size() && e == CUDA_SUCCESS; ++i) e = made->load_for(*vgpus[i]);
  if (e == CUDA_SUCCESS) return made;
  *why = "its kernel cannot be loaded (" + driver.error_text(e) + ")";
  return nullptr;
}

// A launch that has nothing to move takes what first launches load.
CUresult LinkKernel::load_for(const Vgpu& vgpu) {
  Device& device = devices_.emplace_back();
  device.context = vgpu.gpu->context;
  CUresult e = driver_.cuCtxSetCurrent(device.context);
  if (e == CUDA_SUCCESS && !library_)
    e = call(driver_.cuLibraryLoadData, &library_, static_cast<const void*>(kText), nullptr,
             nullptr, 0u, nullptr, nullptr, 0u);
  if (e == CUDA_SUCCESS && !kernel_)
    e = call(driver_.cuLibraryGetKernel, &kernel_, library_, static_cast<const char*>(kName));
  if (e == CUDA_SUCCESS) e = call(driver_.cuKernelGetFunction, &device.function, kernel_);
  CUstream first = nullptr;
  const auto index = static_cast<uint32_t>(devices_.size() - 1);
  if (e == CUDA_SUCCESS) e = stream(index, &first);
  if (e == CUDA_SUCCESS) e = launch(index, first, {});
  return e == CUDA_SUCCESS ? driver_.cuStreamSynchronize(first) : e;
}

LinkKernel::~LinkKernel() {
  for (const Device& device : devices_) {
    driver_.cuCtxSetCurrent(device.context);
    for (CUstream stream : device.streams) driver_.cuStreamDestroy_v2(stream);
  }
  if (library_) call(driver_.cuLibraryUnload, library_);
}

CUresult LinkKernel::launch(uint32_t device, CUstream stream, const Copy& copy) const {
  static_assert(sizeof copy == 48);  // as the parameters lie
  Copy given = copy;
  size_t bytes = sizeof given;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &given, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  return driver_.cuLaunchKernel(devices_[device].function, LinkSlots::kBlocks, 1, 1, kThreads, 1, 1,
                                0, stream, nullptr, extra);
}

CUresult LinkKernel::stream(uint32_t device, CUstream* stream) {
  std::vector<CUstream>& all = devices_[device].streams;
  const auto idle = std::find_if(all.begin(), all.end(), [this](CUstream one) {
    return driver_.cuStreamQuery(one) == CUDA_SUCCESS;
  });
  if (idle != all.end()) return *stream = *idle, CUDA_SUCCESS;
  const CUresult e = driver_.cuStreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, 0);
  if (e == CUDA_SUCCESS) all.push_back(*stream);
  return e;
}

}  // namespace sluice::worker
