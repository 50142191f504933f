// SPDX-License-Identifier: Apache-2.0
// Single instructions on chosen and random operands against what the PTX manual says they yield,
// computed on the host.
#include <bit>
#include <cfenv>
#include <cmath>
#include <functional>
#include <random>

#include "gpu.h"

namespace sluice::softgpu_test {
namespace {

class Instructions : public GpuTest {
 protected:
  // Runs `body` for 32 threads: %r1, %r2, %r3 are the thread's inputs, %r0 its result.
  std::vector<uint32_t> run(const std::string& body, const std::vector<uint32_t>& in) {
    std::string ptx = one_kernel(
        "mul.wide.u32 %offset, %r_tid, 12; add.s64 %rd1, %in, %offset;"
        "ld.global.u32 %r1, [%rd1]; ld.global.u32 %r2, [%rd1+4]; ld.global.u32 %r3, [%rd1+8];\n" +
        body +
        "\nmul.wide.u32 %offset, %r_tid, 4; add.s64 %rd2, %out, %offset;"
        "st.global.u32 [%rd2], %r0;");
    CUmodule module = load(ptx);
    CUfunction f = function(module, "f");
    Buffer<uint32_t> inputs(in), out(32);
    EXPECT_EQ(CUDA_SUCCESS, launch(f, 1, 32, 0, nullptr, out.get(), inputs.get()));
    EXPECT_EQ(CUDA_SUCCESS, cuCtxSynchronize());
    std::vector<uint32_t> result = out.read();
    cuModuleUnload(module);
    return result;
  }

  static std::vector<uint32_t> operands() {
    std::mt19937 random(99);
    std::vector<uint32_t> in(96);
    for (uint32_t& v : in) v = static_cast<uint32_t>(random());
    const uint32_t corners[] = {0, 1, 0xffffffff, 0x80000000, 0x7fffffff, 31, 32, 33, 0xff, 8};
    for (size_t i = 0; i < 30; ++i) in[i * 3 + i % 3] = corners[i % std::size(corners)];
    return in;
  }

  void check(const std::string& body,
             const std::function<uint32_t(uint32_t, uint32_t, uint32_t)>& wanted) {
    std::vector<uint32_t> in = operands();
    std::vector<uint32_t> got = run(body, in);
    for (size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(wanted(in[3 * i], in[3 * i + 1], in[3 * i + 2]), got[i])
          << body << " of 0x" << std::hex << in[3 * i] << " 0x" << in[3 * i + 1] << " 0x"
          << in[3 * i + 2];
    }
  }
};

uint32_t u(int32_t v) { return static_cast<uint32_t>(v); }
int32_t s(uint32_t v) { return static_cast<int32_t>(v); }
float f(uint32_t v) { return std::bit_cast<float>(v); }
// Results of arithmetic are the device's one NaN.
uint32_t bits(float v) { return v == v ? std::bit_cast<uint32_t>(v) : 0x7fffffffu; }

TEST_F(Instructions, ShiftsClampAndFunnelsWrap) {
  check("shl.b32 %r0, %r1, %r2;", [](auto a, auto b, auto) { return b > 31 ? 0 : a << b; });
  check("shr.u32 %r0, %r1, %r2;", [](auto a, auto b, auto) { return b > 31 ? 0 : a >> b; });
  check("shr.s32 %r0, %r1, %r2;",
        [](auto a, auto b, auto) { return u(s(a) >> (b > 31 ? 31 : b)); });
  check("shf.l.wrap.b32 %r0, %r1, %r2, %r3;", [](auto lo, auto hi, auto n) {
    return (n & 31) ? hi << (n & 31) | lo >> (32 - (n & 31)) : hi;
  });
  check("shf.r.clamp.b32 %r0, %r1, %r2, %r3;", [](auto lo, auto hi, auto n) {
    return n == 0 ? lo : n >= 32 ? hi : lo >> n | hi << (32 - n);
  });
}

TEST_F(Instructions, BitFields) {
  check("bfe.u32 %r0, %r1, %r2, %r3;", [](auto a, auto b, auto c) {
    uint32_t p = b & 0xff, n = c & 0xff, r = 0;
    for (uint32_t i = 0; i < 32 && i < n; ++i) r |= (p + i < 32 ? a >> (p + i) & 1 : 0) << i;
    return r;
  });
  check("bfe.s32 %r0, %r1, %r2, %r3;", [](auto a, auto b, auto c) {
    uint32_t p = b & 0xff, n = c & 0xff, r = 0;
    uint32_t sign = n == 0 ? 0 : a >> std::min(p + n - 1, 31u) & 1;
    for (uint32_t i = 0; i < 32; ++i) {
      r |= (i < n && p + i < 32 ? a >> (p + i) & 1 : sign) << i;
    }
    return r;
  });
  check("bfi.b32 %r0, %r1, %r2, %r3, 8;", [](auto a, auto b, auto c) {
    uint32_t p = c & 0xff, r = b;
    for (uint32_t i = 0; i < 8 && p + i < 32; ++i) {
      r = (r & ~(1u << (p + i))) | (a >> i & 1) << (p + i);
    }
    return r;
  });
  check("bfind.s32 %r0, %r1;", [](auto a, auto, auto) {
    uint32_t v = s(a) < 0 ? ~a : a;
    return v == 0 ? ~0u : 31u - static_cast<uint32_t>(std::countl_zero(v));
  });
  check("clz.b32 %r1, %r1; popc.b32 %r2, %r2; mad.lo.u32 %r0, %r1, 100, %r2;",
        [](auto a, auto b, auto) {
          return static_cast<uint32_t>(std::countl_zero(a) * 100 + std::popcount(b));
        });
}

TEST_F(Instructions, PermutesAndThreeInputLogic) {
  check("lop3.b32 %r0, %r1, %r2, %r3, 0x96;", [](auto a, auto b, auto c) { return a ^ b ^ c; });
  check("lop3.b32 %r0, %r1, %r2, %r3, 0xE8;",
        [](auto a, auto b, auto c) { return (a & b) | (a & c) | (b & c); });
  check("prmt.b32 %r0, %r1, %r2, 0xF602;", [](auto a, auto b, auto) {
    uint32_t sign = b >> 31 ? 0xff : 0;
    return (a >> 16 & 0xff) | (a & 0xff) << 8 | (b >> 16 & 0xff) << 16 | sign << 24;
  });
}

TEST_F(Instructions, IntegerEdges) {
  check("add.sat.s32 %r0, %r1, %r2;", [](auto a, auto b, auto) {
    int64_t v = int64_t{s(a)} + s(b);
    return u(static_cast<int32_t>(std::clamp<int64_t>(v, INT32_MIN, INT32_MAX)));
  });
  check("add.cc.u32 %r4, %r1, %r2; addc.u32 %r0, 0, 0;",
        [](auto a, auto b, auto) { return a + b < a ? 1u : 0u; });
  check("sub.cc.u32 %r4, %r1, %r2; subc.u32 %r0, %r3, 0;",
        [](auto a, auto b, auto c) { return c - (a < b ? 1u : 0u); });
  check("mad.hi.s32 %r0, %r1, %r2, %r3;", [](auto a, auto b, auto c) {
    return u(s(static_cast<uint32_t>(int64_t{s(a)} * s(b) >> 32))) + c;
  });
  check("abs.s32 %r0, %r1;", [](auto a, auto, auto) { return s(a) < 0 ? 0 - a : a; });
  check("sad.s32 %r0, %r1, %r2, %r3;",
        [](auto a, auto b, auto c) { return c + (s(a) < s(b) ? b - a : a - b); });
  check("mul24.lo.s32 %r0, %r1, %r2;", [](auto a, auto b, auto) {
    return static_cast<uint32_t>(int64_t{s(a << 8) >> 8} * (s(b << 8) >> 8));
  });
}

TEST_F(Instructions, FloatingPointRoundsAsAsked) {
  auto rounded = [](int mode, const std::function<float()>& compute) {
    std::fesetround(mode);
    volatile float v = compute();
    std::fesetround(FE_TONEAREST);
    return bits(v);
  };
  const std::pair<const char*, int> modes[] = {
      {"rn", FE_TONEAREST}, {"rz", FE_TOWARDZERO}, {"rm", FE_DOWNWARD}, {"rp", FE_UPWARD}};
  for (auto [name, host] : modes) {
    std::string r = name;
    auto with = [](const std::string& op, int sources) {
      std::string body = "mov.b32 %f1, %r1; mov.b32 %f2, %r2; mov.b32 %f3, %r3;" + op + " %f0, %f1";
      if (sources > 1) body += ", %f2";
      if (sources > 2) body += ", %f3";
      return body + "; mov.b32 %r0, %f0;";
    };
    int mode = host;
    check(with("add." + r + ".f32", 2), [&](auto a, auto b, auto) {
      return rounded(mode, [&] {
        volatile float x = f(a), y = f(b);
        return x + y;
      });
    });
    check(with("mul." + r + ".f32", 2), [&](auto a, auto b, auto) {
      return rounded(mode, [&] {
        volatile float x = f(a), y = f(b);
        return x * y;
      });
    });
    check(with("fma." + r + ".f32", 3), [&](auto a, auto b, auto c) {
      return rounded(mode, [&] { return std::fma(f(a), f(b), f(c)); });
    });
    check(with("div." + r + ".f32", 2), [&](auto a, auto b, auto) {
      return rounded(mode, [&] {
        volatile float x = f(a), y = f(b);
        return x / y;
      });
    });
    check(with("sqrt." + r + ".f32", 1),
          [&](auto a, auto, auto) { return rounded(mode, [&] { return std::sqrt(f(a)); }); });
  }
}

TEST_F(Instructions, FlushToZeroSaturationAndMinimaOfNan) {
  auto flush = [](float v) {
    return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.f, v) : v;
  };
  check(
      "shr.u32 %r1, %r1, 9; mov.b32 %f1, %r1; mul.ftz.f32 %f0, %f1, 0f40000000; "
      "mov.b32 %r0, %f0;",
      [&](auto a, auto, auto) { return bits(flush(flush(f(a >> 9)) * 2)); });
  check("mov.b32 %f1, %r1; add.sat.f32 %f0, %f1, 0f00000000; mov.b32 %r0, %f0;",
        [](auto a, auto, auto) {
          float v = f(a);
          return v > 0 ? (v < 1 ? bits(v) : 0x3f800000u) : 0u;
        });
  std::vector<uint32_t> in(96, 0x7fc00000);
  in[1] = 0x3f800000;             // NaN and 1
  in[3] = 0x80000000, in[4] = 0;  // -0 and +0
  std::vector<uint32_t> got =
      run("mov.b32 %f1, %r1; mov.b32 %f2, %r2; min.f32 %f0, %f1, %f2; mov.b32 %r0, %f0;", in);
  EXPECT_EQ(0x3f800000u, got[0]);
  EXPECT_EQ(0x80000000u, got[1]);
  EXPECT_EQ(0x7fffffffu, got[2]);
  got = run("mov.b32 %f1, %r1; mov.b32 %f2, %r2; max.NaN.f32 %f0, %f1, %f2; mov.b32 %r0, %f0;", in);
  EXPECT_EQ(0x7fffffffu, got[0]);
  EXPECT_EQ(0u, got[1]);
}

TEST_F(Instructions, ConversionsRoundSaturateAndWrap) {
  const std::pair<const char*, float (*)(float)> modes[] = {
      {"rzi", [](float v) { return std::trunc(v); }},
      {"rmi", [](float v) { return std::floor(v); }},
      {"rpi", [](float v) { return std::ceil(v); }},
      {"rni", [](float v) { return std::nearbyint(v); }}};
  for (auto [name, round] : modes) {
    auto r = round;
    check("cvt.rn.f32.s32 %f1, %r1; mul.f32 %f1, %f1, 0f3A83126F; cvt." + std::string(name) +
              ".s32.f32 %r0, %f1;",
          [=](auto a, auto, auto) {
            volatile float v = static_cast<float>(s(a));
            v = v * f(0x3A83126F);
            return u(static_cast<int32_t>(r(v)));
          });
  }
  check("mov.b32 %f1, %r1; cvt.rzi.u32.f32 %r0, %f1;", [](auto a, auto, auto) -> uint32_t {
    double v = f(a);
    return v != v ? 0 : v <= 0 ? 0 : v >= 4294967295.0 ? ~0u : static_cast<uint32_t>(v);
  });
  check("cvt.sat.s8.s32 %r0, %r1;",
        [](auto a, auto, auto) { return u(std::clamp(s(a), -128, 127)); });
  check("cvt.u8.u32 %r0, %r1;", [](auto a, auto, auto) { return a & 0xff; });
  check("cvt.s16.s32 %rs1, %r1; cvt.s32.s16 %r0, %rs1;",
        [](auto a, auto, auto) { return u(static_cast<int16_t>(a)); });
  check("cvt.rz.f32.u32 %f1, %r1; mov.b32 %r0, %f1;", [](auto a, auto, auto) {
    std::fesetround(FE_TOWARDZERO);
    volatile uint32_t v = a;
    volatile float r = static_cast<float>(static_cast<double>(v));
    std::fesetround(FE_TONEAREST);
    return bits(r);
  });
  check("mov.b32 %f1, %r1; cvt.f64.f32 %fd1, %f1; cvt.rn.f32.f64 %f2, %fd1; mov.b32 %r0, %f2;",
        [](auto a, auto, auto) { return bits(f(a)); });
}

// Every half-precision number survives the way through f32; f32 rounds to the nearest half.
TEST_F(Instructions, HalvesOfEveryKind) {
  check(
      "mov.b32 {%rs1, %rs2}, %r1; cvt.f32.f16 %f1, %rs1; cvt.rn.f16.f32 %rs3, %f1;"
      "cvt.u32.u16 %r0, %rs3;",
      [](auto a, auto, auto) {
        uint32_t h = a & 0xffff;
        return (h & 0x7c00) == 0x7c00 && (h & 0x3ff) ? 0x7fffu : h;
      });
  std::vector<uint32_t> in(96, 0);
  const std::pair<uint32_t, uint32_t> cases[] = {
      {0x3f800000, 0x3c00}, {0x477fefff, 0x7bff}, {0x477ff000, 0x7c00}, {0x33000000, 0x0000},
      {0x33000001, 0x0001}, {0x38800000, 0x0400}, {0x387fc000, 0x03ff}, {0xc0490fdb, 0xc248},
      {0x3f801000, 0x3c00}, {0x3f803000, 0x3c02}, {0x7f800000, 0x7c00}, {0x7fc00001, 0x7fff}};
  for (size_t i = 0; i < std::size(cases); ++i) in[3 * i] = cases[i].first;
  std::vector<uint32_t> got =
      run("mov.b32 %f1, %r1; cvt.rn.f16.f32 %rs1, %f1; cvt.u32.u16 %r0, %rs1;", in);
  for (size_t i = 0; i < std::size(cases); ++i) {
    EXPECT_EQ(cases[i].second, got[i]) << std::hex << cases[i].first;
  }
}

TEST_F(Instructions, ComparisonsKnowSignsAndUnorderedOperands) {
  auto compare = [&](const std::string& op, const std::function<bool(uint32_t, uint32_t)>& wanted) {
    check("setp." + op + " %p1, %r1, %r2; selp.u32 %r0, 1, 0, %p1;",
          [&](auto a, auto b, auto) { return wanted(a, b) ? 1u : 0u; });
  };
  compare("lt.s32", [](auto a, auto b) { return s(a) < s(b); });
  compare("lt.u32", [](auto a, auto b) { return a < b; });
  compare("hi.u32", [](auto a, auto b) { return a > b; });
  compare("ge.s32", [](auto a, auto b) { return s(a) >= s(b); });
  auto real = [&](const std::string& op, const std::function<bool(float, float)>& wanted) {
    check("mov.b32 %f1, %r1; mov.b32 %f2, %r2; setp." + op +
              ".f32 %p1, %f1, %f2; selp.u32 %r0, 1, 0, %p1;",
          [&](auto a, auto b, auto) { return wanted(f(a), f(b)) ? 1u : 0u; });
  };
  real("lt", [](float a, float b) { return a < b; });
  real("geu", [](float a, float b) { return !(a < b); });
  real("ne", [](float a, float b) { return a < b || a > b; });
  real("neu", [](float a, float b) { return a != b; });
  real("nan", [](float a, float b) { return std::isunordered(a, b); });
}

TEST_F(Instructions, MatchReduxElectAndLaneMasks) {
  std::vector<uint32_t> in(96, 0);
  for (uint32_t i = 0; i < 32; ++i) in[3 * i] = i % 5;
  std::vector<uint32_t> got = run("match.any.sync.b32 %r0, %r1, -1;", in);
  for (uint32_t i = 0; i < 32; ++i) {
    uint32_t mask = 0;
    for (uint32_t j = i % 5; j < 32; j += 5) mask |= 1u << j;
    EXPECT_EQ(mask, got[i]);
  }
  got = run("redux.sync.add.u32 %r0, %r1, -1;", in);
  EXPECT_EQ(std::vector<uint32_t>(32, 61), got);
  got = run("elect.sync %r4|%p1, -1; selp.u32 %r0, 1, 0, %p1;", in);
  EXPECT_EQ(1u, got[0]);
  EXPECT_EQ(0u, got[1]);
  got = run("mov.u32 %r0, %lanemask_lt;", in);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ((1u << i) - 1, got[i]);
  got = run("shfl.sync.up.b32 %r0|%p1, %r_tid, 3, 0, -1; @!%p1 mov.u32 %r0, 1000;", in);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(i < 3 ? 1000 : i - 3, got[i]);
  got = run("shfl.sync.bfly.b32 %r0, %r_tid, 5, 0x1807, -1;", in);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(i ^ 5, got[i]);
}

TEST_F(Instructions, AsynchronousCopiesFillWhatTheyDoNotRead) {
  std::string ptx = one_kernel(
      "mul.wide.u32 %offset, %r_tid, 16; add.s64 %rd1, %in, %offset; add.s64 %rd2, %out, %offset;"
      "mov.u32 %r1, room; mad.lo.u32 %r1, %r_tid, 16, %r1; mov.u32 %r2, 8;"
      "cp.async.cg.shared.global [%r1], [%rd1], 16, %r2; cp.async.commit_group;"
      "cp.async.wait_group 0; ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r1];"
      "st.global.v4.u32 [%rd2], {%r3, %r4, %r5, %r6};",
      ".shared .align 16 .b8 room[512];");
  std::vector<uint32_t> in(128);
  for (uint32_t i = 0; i < 128; ++i) in[i] = i + 1;
  Buffer<uint32_t> source(in), out(128);
  CHECK_CU(launch(function(load(ptx), "f"), 1, 32, 0, nullptr, out.get(), source.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<uint32_t> got = out.read();
  for (uint32_t i = 0; i < 128; ++i) EXPECT_EQ(i % 4 < 2 ? i + 1 : 0, got[i]);
}

TEST_F(Instructions, InitialisersScopesAndNestedBlocks) {
  CUmodule module = load(hand_written("instructions"));
  Buffer<uint32_t> out(8);
  CHECK_CU(launch(function(module, "initialised"), 1, 1, 0, nullptr, out.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<uint32_t> wanted = {0xff, 0xffffffff, 2, 0x40800000, u(-2), 42, 9, 42};
  EXPECT_EQ(wanted, out.read());
  CUdeviceptr pointers = 0, bytes = 0;
  CHECK_CU(cuModuleGetGlobal_v2(&pointers, nullptr, module, "pointers"));
  CHECK_CU(cuModuleGetGlobal_v2(&bytes, nullptr, module, "bytes"));
  uint64_t held[3];
  CHECK_CU(cuMemcpyDtoH_v2(held, pointers, sizeof held));
  EXPECT_EQ(bytes + 2, held[0]);
  EXPECT_EQ(bytes, held[1]);
  EXPECT_EQ(16u, held[2]);
}

}  // namespace
}  // namespace sluice::softgpu_test
