// SPDX-License-Identifier: Apache-2.0
// Arithmetic against the host's: exact where IEEE or integers say so, within CUDA's stated error
// for the functions that CUDA approximates.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "compiled.h"

namespace sluice::softgpu_test {
namespace {

class Math : public Compiled {};
INSTANTIATE_TEST_SUITE_P(Architectures, Math, ::testing::Values(75, 80, 90),
                         [](const auto& info) { return "compute_" + std::to_string(info.param); });

// Distance in units in the last place.
template <class T>
double ulps(T got, T wanted) {
  if (got == wanted || (std::isnan(got) && std::isnan(wanted))) return 0;
  T step =
      std::nextafter(std::fabs(wanted), std::numeric_limits<T>::infinity()) - std::fabs(wanted);
  return static_cast<double>(std::fabs(got - wanted)) / static_cast<double>(step);
}

TEST_P(Math, DoublePrecision) {
  std::vector<double> in(32);
  for (size_t i = 0; i < 32; ++i) in[i] = (static_cast<double>(i) - 15.3) * 1.7;
  Buffer<double> data(in), out(32 * 8);
  CHECK_CU(launch(kernel("double_math"), 1, 32, 0, nullptr, data.get(), out.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<double> got = out.read();
  for (size_t i = 0; i < 32; ++i) {
    double v = in[i];
    const double* o = &got[i * 8];
    EXPECT_EQ(std::fma(v, v, 1.0 / (v + 3.0)), o[0]);
    EXPECT_EQ(std::sqrt(std::fabs(v)), o[1]);
    EXPECT_LE(ulps(o[2], std::sin(v)), 2);
    EXPECT_LE(ulps(o[3], std::exp(v * 0.1)), 1);
    EXPECT_LE(ulps(o[4], std::log(std::fabs(v) + 1.0)), 1);
    EXPECT_LE(ulps(o[5], std::pow(std::fabs(v), 1.3)), 2);
    EXPECT_EQ(std::floor(v) + std::ceil(v * 0.5), o[6]);
    EXPECT_EQ(std::fmod(v, 2.5), o[7]);
  }
}

TEST_P(Math, SinglePrecision) {
  std::vector<float> in(32);
  for (size_t i = 0; i < 32; ++i) in[i] = (static_cast<float>(i) - 15.3f) * 1.7f;
  Buffer<float> data(in), out(32 * 8);
  CHECK_CU(launch(kernel("float_math"), 1, 32, 0, nullptr, data.get(), out.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<float> got = out.read();
  for (size_t i = 0; i < 32; ++i) {
    float v = in[i];
    const float* o = &got[i * 8];
    EXPECT_EQ(v / 3.7f, o[0]);
    EXPECT_EQ(std::sqrt(std::fabs(v)), o[1]);
    EXPECT_LE(ulps(o[2], std::sin(v)), 2);
    EXPECT_LE(ulps(o[3], std::exp(v * 0.1f)), 2);
    EXPECT_LE(ulps(o[4], std::log(std::fabs(v) + 1.0f)), 2);
    EXPECT_LE(ulps(o[5], std::tanh(v)), 2);
    EXPECT_LE(ulps(o[6], 1.0f / std::sqrt(std::fabs(v) + 0.5f)), 2);
    EXPECT_LE(ulps(o[7], std::erf(v)), 2);
  }
}

TEST_P(Math, Integers) {
  std::mt19937 random(7);
  std::vector<int> in(64);
  for (int& v : in) v = static_cast<int>(random());
  in[0] = 0;
  in[1] = -1;
  in[2] = std::numeric_limits<int>::min();
  in[33] = 7;
  in[34] = 3;
  Buffer<int> data(in);
  Buffer<long long> out(32 * 16);
  CHECK_CU(launch(kernel("integer_math"), 1, 32, 0, nullptr, data.get(), out.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<long long> got = out.read();
  for (size_t i = 0; i < 32; ++i) {
    int a = in[i], b = in[i + 32];
    unsigned ua = static_cast<unsigned>(a), ub = static_cast<unsigned>(b);
    long long wide = static_cast<long long>(a) * b;
    const long long* o = &got[i * 16];
    EXPECT_EQ(b ? a / b : 0, o[0]);
    EXPECT_EQ(b ? a % b : 0, o[1]);
    EXPECT_EQ(ub ? ua / ub : 0, static_cast<unsigned>(o[2]));
    EXPECT_EQ(ub ? ua % ub : 0, static_cast<unsigned>(o[3]));
    EXPECT_EQ(wide, o[4]);
    EXPECT_EQ(wide >> 32, o[5]);
    EXPECT_EQ(static_cast<uint64_t>(ua) * ub >> 32, static_cast<uint64_t>(o[6]));
    EXPECT_EQ(std::min(a, b) + static_cast<long long>(std::max(ua, ub)), o[7]);
    EXPECT_EQ(std::popcount(ua) * 100 + std::countl_zero(ua), o[8]);
    uint32_t reversed = 0;
    for (int bit = 0; bit < 32; ++bit) reversed |= (ua >> bit & 1) << (31 - bit);
    EXPECT_EQ(reversed, static_cast<uint64_t>(o[9]));
    EXPECT_EQ(a ? std::countr_zero(ua) + 1 : 0, o[10]);
    EXPECT_EQ(static_cast<uint32_t>(ub << 7 | ua >> 25), static_cast<uint64_t>(o[11]));
    uint32_t mixed =
        (ua & 0xff) | (ub & 0xff) << 8 | (ua >> 8 & 0xff) << 16 | (ub >> 8 & 0xff) << 24;
    EXPECT_EQ(mixed, static_cast<uint64_t>(o[12]));
    EXPECT_EQ(b ? wide / b : 0, o[13]);
    long long magnitude = static_cast<int>(a < 0 ? 0u - ua : ua);
    EXPECT_EQ(magnitude + (a >> 3) + (ua >> 5), o[14]);
    int dot = 17;
    for (int k = 0; k < 4; ++k) {
      dot += static_cast<int8_t>(ua >> (8 * k)) * static_cast<int8_t>(ub >> (8 * k));
    }
    EXPECT_EQ(dot, o[15]);
  }
}

// The host's own correctly rounded conversion to half, by search.
float to_half(double v) {
  if (v == 0 || !std::isfinite(v)) return static_cast<float>(v);
  int exponent = std::max(std::ilogb(v), -14);
  double step = std::ldexp(1.0, exponent - 10);
  return static_cast<float>(std::nearbyint(v / step) * step);
}
float to_bfloat(double v) {
  if (v == 0) return 0;
  double step = std::ldexp(1.0, std::ilogb(v) - 7);
  return static_cast<float>(std::nearbyint(v / step) * step);
}

TEST_P(Math, SixteenBitFloatsAreRoundedOnce) {
  std::mt19937 random(11);
  std::uniform_real_distribution<float> values(-8, 8);
  std::vector<float> in(64);
  for (float& v : in) v = values(random);
  Buffer<float> data(in), out(32 * 6);
  CHECK_CU(launch(kernel("half_math"), 1, 32, 0, nullptr, data.get(), out.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<float> got = out.read();
  for (size_t i = 0; i < 32; ++i) {
    double a = to_half(in[i]), b = to_half(in[i + 32]);
    double c = to_bfloat(in[i]), e = to_bfloat(in[i + 32]);
    const float* o = &got[i * 6];
    EXPECT_EQ(to_half(a + b), o[0]);
    EXPECT_EQ(to_half(a * b), o[1]);
    EXPECT_EQ(to_half(a * b + a), o[2]);
    EXPECT_EQ(to_half(b * b), o[3]);
    EXPECT_EQ(to_bfloat(c + e), o[4]);
    EXPECT_EQ(to_bfloat(c * e + c), o[5]);
  }
}

}  // namespace
}  // namespace sluice::softgpu_test
