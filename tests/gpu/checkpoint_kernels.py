# SPDX-License-Identifier: Apache-2.0
"""PTX for checkpoint_subject.py: memory with a pattern, its check, and work that takes a while."""

_INDEX = """
  .reg .pred %q; .reg .u32 %r<9>; .reg .u64 %d<8>;
  ld.param.u64 %d1, [p]; ld.param.u64 %d2, [n]; ld.param.u32 %r1, [seed];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mov.u32 %r5, %nctaid.x;
  mul.wide.u32 %d3, %r2, %r3; cvt.u64.u32 %d4, %r4; add.u64 %d3, %d3, %d4;
  mul.wide.u32 %d5, %r5, %r3;
again:
  setp.ge.u64 %q, %d3, %d2;
  @%q bra done;
  cvt.u32.u64 %r6, %d3; mul.lo.u32 %r6, %r6, 0x9E3779B1; add.u32 %r6, %r6, %r1;
  shl.b64 %d4, %d3, 2; add.u64 %d4, %d1, %d4;
"""

#: fill(p, n, seed): p[i] = i * 0x9E3779B1 + seed, for n words. check(p, n, seed, wrong): adds the
#: number of other words to *wrong. spin(ns): one thread, so long by the GPU's clock.
PTX = f"""
.version 7.8
.target sm_70
.address_size 64
.visible .entry fill(.param .u64 p, .param .u64 n, .param .u32 seed) {{
{_INDEX}
  st.global.u32 [%d4], %r6;
  add.u64 %d3, %d3, %d5;
  bra again;
done:
  ret;
}}
.visible .entry check(.param .u64 p, .param .u64 n, .param .u32 seed, .param .u64 wrong) {{
  .reg .u64 %w; .reg .pred %b; .reg .u32 %v;
  ld.param.u64 %w, [wrong];
{_INDEX}
  ld.global.u32 %v, [%d4];
  setp.ne.u32 %b, %v, %r6;
  @%b red.global.add.u32 [%w], 1;
  add.u64 %d3, %d3, %d5;
  bra again;
done:
  ret;
}}
.visible .entry spin(.param .u64 ns) {{
  .reg .pred %q; .reg .u64 %d<5>;
  ld.param.u64 %d1, [ns];
  mov.u64 %d2, %globaltimer;
again:
  mov.u64 %d3, %globaltimer;
  sub.u64 %d4, %d3, %d2;
  setp.lt.u64 %q, %d4, %d1;
  @%q bra again;
  ret;
}}
""".encode()
