// SPDX-License-Identifier: Apache-2.0
// Copies and fills: every byte arrives where it should and none elsewhere, whichever way the bytes
// take (in the command, in the reply, through staging pieces, in place in pinned memory).
#include <algorithm>
#include <optional>

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

class Copies : public RoundTrip {
 protected:
  using Bytes = std::vector<std::byte>;
  Bytes random_bytes(size_t n) {
    Bytes all(n);
    for (size_t i = 0; i < n; i += 8) {
      const uint64_t v = next();
      std::memcpy(all.data() + i, &v, std::min<size_t>(8, n - i));
    }
    return all;
  }
  Bytes on_device(uint64_t at, size_t n) { return recording().memory.read(at, n); }
  // Pinned memory, with something in it.
  struct Pinned {
    std::byte* at = nullptr;
    size_t bytes;
    explicit Pinned(const Bytes& data) : bytes(data.size()) {
      void* p = nullptr;
      EXPECT_EQ(cuMemHostAlloc(&p, bytes, 0), CUDA_SUCCESS);
      at = static_cast<std::byte*>(p);
      std::memcpy(at, data.data(), bytes);
    }
    ~Pinned() { cuMemFreeHost(at); }
  };
  static constexpr size_t kSizes[] = {1, 7, 100, 8176, 8177, 65536, 65537, 1 << 20, (3 << 20) + 5};
  static constexpr size_t kGuard = 64;  // around what is written, to be left alone

  struct Shape {
    size_t width, rows, to_pitch, from_pitch;
    size_t to_bytes() const { return to_pitch * (rows - 1) + width; }
    size_t from_bytes() const { return from_pitch * (rows - 1) + width; }
  };
  Shape random_shape() {
    const size_t most = one_of<size_t>({16, 300, 5000, 70000});
    Shape s{1 + next() % most, 1 + next() % 9, 0, 0};
    s.to_pitch = s.width + (next() % 2 ? next() % 100 : 0);
    s.from_pitch = s.width + (next() % 2 ? next() % 100 : 0);
    return s;
  }
  // What `to` holds after the rectangle has been copied into it.
  static Bytes copied(Bytes to, size_t to_at, const Bytes& from, const Shape& s) {
    for (size_t row = 0; row < s.rows; ++row)
      std::memcpy(to.data() + to_at + row * s.to_pitch, from.data() + row * s.from_pitch, s.width);
    return to;
  }
  bool synchronized() {
    const auto& calls = recording().calls;
    return std::any_of(calls.begin(), calls.end(), [](const Call& c) {
      return std::string(c.name).starts_with("cuStreamSynchronize");
    });
  }
  // One stream function of the driver got these bytes, and all of them ran on this stream.
  void expect_stream(CUstream stream) {
    for (const Call& c : recording().calls) {
      const std::string name = c.name;
      if (!name.starts_with("cuMemcpy") && !name.starts_with("cuMemset")) continue;
      EXPECT_EQ(c.at<CUstream>(c.arguments.size() - 1), driver_of(stream)) << name;
    }
  }
};

TEST_F(Copies, ToDevice) {
  for (size_t n : kSizes) {
    for (bool pinned : {false, true}) {
      for (bool wait : {false, true}) {
        recording().clear();
        const Bytes before = random_bytes(n + 2 * kGuard), data = random_bytes(n);
        const uint64_t to = random_address(n + 2 * kGuard);
        recording().memory.write(to, before.data(), before.size());
        std::optional<Pinned> memory;
        if (pinned) memory.emplace(data);
        const void* from = pinned ? memory->at : data.data();
        const CUstream stream = wait ? nullptr : random_stream();
        ASSERT_EQ(wait ? cuMemcpyHtoD_v2(to + kGuard, from, n)
                       : cuMemcpyHtoDAsync_v2(to + kGuard, from, n, stream),
                  CUDA_SUCCESS);
        Bytes expected = before;
        std::memcpy(expected.data() + kGuard, data.data(), n);
        EXPECT_TRUE(on_device(to, n + 2 * kGuard) == expected) << n << " bytes, pinned " << pinned;
        expect_stream(stream);
        // In place, waited for where the application may go on writing.
        if (!pinned) continue;
        EXPECT_EQ(recording().calls_of("cuStreamSynchronize").size(), wait ? 1u : 0u);
        EXPECT_EQ(recording().calls_of("cuMemcpyHtoDAsync_v2")[0]->at<const void*>(1), from);
      }
    }
  }
}

TEST_F(Copies, ToHost) {
  for (size_t n : kSizes) {
    for (bool pinned : {false, true}) {
      for (bool wait : {false, true}) {
        recording().clear();
        const Bytes data = random_bytes(n), before = random_bytes(n + 2 * kGuard);
        const uint64_t from = random_address(n);
        recording().memory.write(from, data.data(), n);
        Bytes plain = before;
        std::optional<Pinned> memory;
        if (pinned) memory.emplace(before);
        std::byte* to = pinned ? memory->at : plain.data();
        const CUstream stream = wait ? nullptr : random_stream();
        ASSERT_EQ(wait ? cuMemcpyDtoH_v2(to + kGuard, from, n)
                       : cuMemcpyDtoHAsync_v2(to + kGuard, from, n, stream),
                  CUDA_SUCCESS);
        Bytes expected = before;
        std::memcpy(expected.data() + kGuard, data.data(), n);
        EXPECT_EQ(std::memcmp(to, expected.data(), expected.size()), 0)
            << n << " bytes, pinned " << pinned;
        expect_stream(stream);
        if (!pinned) continue;
        EXPECT_EQ(recording().calls_of("cuMemcpyDtoHAsync_v2")[0]->at<void*>(0), to + kGuard);
      }
    }
  }
}

TEST_F(Copies, OnDevice) {
  for (size_t n : kSizes) {
    recording().clear();
    const Bytes data = random_bytes(n);
    const uint64_t from = world().memory, to = world().memory + (4 << 20);
    recording().memory.write(from, data.data(), n);
    const CUstream stream = random_stream();
    ASSERT_EQ(cuMemcpyDtoDAsync_v2(to, from, n, stream), CUDA_SUCCESS);
    const Call& got = recording().only("cuMemcpyDtoDAsync_v2");
    EXPECT_EQ(got.at<CUdeviceptr>(0), to);
    EXPECT_EQ(got.at<CUdeviceptr>(1), from);
    EXPECT_EQ(got.at<size_t>(2), n);
    EXPECT_TRUE(on_device(to, n) == data);
    expect_stream(stream);
  }
}

TEST_F(Copies, Rectangles) {
  for (int i = 0; i < 200; ++i) {
    recording().clear();
    const Shape s = random_shape();
    const CUstream stream = random_stream();
    const int way = static_cast<int>(next() % 3);
    const bool pinned = next() % 2;
    const Bytes before = random_bytes(s.to_bytes() + 2 * kGuard),
                data = random_bytes(s.from_bytes());
    const Bytes expected = copied(before, kGuard, data, s);
    CUDA_MEMCPY2D p{};
    p.WidthInBytes = s.width;
    p.Height = s.rows;
    p.srcPitch = s.from_pitch;
    p.dstPitch = s.to_pitch;
    Bytes plain_to = before;
    std::optional<Pinned> from_memory, to_memory;
    if (pinned) from_memory.emplace(data), to_memory.emplace(before);
    std::byte* to_host = pinned ? to_memory->at : plain_to.data();
    const uint64_t to_device = world().memory + (4 << 20), from_device = world().memory;
    if (way == 0) {
      p.srcMemoryType = CU_MEMORYTYPE_HOST;
      p.srcHost = pinned ? from_memory->at : data.data();
    } else {
      p.srcMemoryType = CU_MEMORYTYPE_DEVICE;
      p.srcDevice = from_device;
      recording().memory.write(from_device, data.data(), data.size());
    }
    if (way == 1) {
      p.dstMemoryType = CU_MEMORYTYPE_HOST;
      p.dstHost = to_host + kGuard;
    } else {
      p.dstMemoryType = CU_MEMORYTYPE_DEVICE;
      p.dstDevice = to_device + kGuard;
      recording().memory.write(to_device, before.data(), before.size());
    }
    ASSERT_EQ(cuMemcpy2DAsync_v2(&p, stream), CUDA_SUCCESS);
    const Bytes after =
        way == 1 ? Bytes(to_host, to_host + before.size()) : on_device(to_device, before.size());
    EXPECT_TRUE(after == expected)
        << "way " << way << ", pinned " << pinned << ", " << s.width << " x " << s.rows
        << ", pitches " << s.to_pitch << " and " << s.from_pitch;
    expect_stream(stream);
  }
}

TEST_F(Copies, Boxes) {
  for (int i = 0; i < 50; ++i) {
    // A box inside larger ones on both sides.
    CUDA_MEMCPY3D p{};
    p.WidthInBytes = 1 + next() % 60, p.Height = 1 + next() % 6, p.Depth = 1 + next() % 4;
    p.srcXInBytes = next() % 5, p.srcY = next() % 3, p.srcZ = next() % 2;
    p.dstXInBytes = next() % 5, p.dstY = next() % 3, p.dstZ = next() % 2;
    p.srcPitch = 80, p.srcHeight = 10, p.dstPitch = 96, p.dstHeight = 12;
    const Bytes data = random_bytes(80 * 10 * 8), before = random_bytes(96 * 12 * 8);
    p.srcMemoryType = CU_MEMORYTYPE_HOST;
    p.srcHost = data.data();
    p.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    p.dstDevice = world().memory;
    recording().memory.write(world().memory, before.data(), before.size());
    ASSERT_EQ(cuMemcpy3DAsync_v2(&p, world().stream), CUDA_SUCCESS);
    Bytes expected = before;
    for (size_t z = 0; z < p.Depth; ++z)
      for (size_t y = 0; y < p.Height; ++y)
        std::memcpy(expected.data() + ((p.dstZ + z) * 12 + p.dstY + y) * 96 + p.dstXInBytes,
                    data.data() + ((p.srcZ + z) * 10 + p.srcY + y) * 80 + p.srcXInBytes,
                    p.WidthInBytes);
    EXPECT_TRUE(on_device(world().memory, before.size()) == expected);
  }
}

TEST_F(Copies, Fills) {
  for (int i = 0; i < 200; ++i) {
    recording().clear();
    const size_t element = size_t{1} << next() % 3;
    const auto value = static_cast<unsigned>(next());
    const bool flat = next() % 2;
    const size_t width = 1 + next() % 200, rows = flat ? 1 : 1 + next() % 5;
    const size_t pitch = width * element + next() % 4 * element;
    const CUstream stream = random_stream();
    const size_t bytes = pitch * rows + 2 * kGuard;
    const Bytes before = random_bytes(bytes);
    const uint64_t at = random_address(bytes), to = at + kGuard;
    recording().memory.write(at, before.data(), bytes);
    const auto h = static_cast<unsigned short>(value);
    const auto b = static_cast<unsigned char>(value);
    CUresult e;
    if (flat)
      e = element == 1   ? cuMemsetD8Async(to, b, width, stream)
          : element == 2 ? cuMemsetD16Async(to, h, width, stream)
                         : cuMemsetD32Async(to, value, width, stream);
    else
      e = element == 1   ? cuMemsetD2D8Async(to, pitch, b, width, rows, stream)
          : element == 2 ? cuMemsetD2D16Async(to, pitch, h, width, rows, stream)
                         : cuMemsetD2D32Async(to, pitch, value, width, rows, stream);
    ASSERT_EQ(e, CUDA_SUCCESS);
    Bytes expected = before;
    for (size_t row = 0; row < rows; ++row)
      for (size_t n = 0; n < width; ++n)
        std::memcpy(expected.data() + kGuard + row * pitch + n * element, &value, element);
    EXPECT_TRUE(on_device(at, bytes) == expected)
        << element << "-byte elements, " << width << " x " << rows;
    expect_stream(stream);
  }
}

// Memory that CUDA knows of and the device does not reach stands for the device's in fills and
// copies; what CUDA does not know, or what only begins there, does not.
TEST_F(Copies, PinnedMemoryThatIsNotShared) {
  alignas(8) std::byte memory[256];
  std::memset(memory, 1, sizeof memory);
  const auto at = reinterpret_cast<CUdeviceptr>(memory);
  const CUstream stream = random_stream();
  EXPECT_EQ(cuMemsetD32Async(at, 7, 4, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH_v2(memory + 128, at, 16), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemHostRegister_v2(memory, 64, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD32Async(at, 7, 17, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoDAsync_v2(at + 32, world().memory, 33, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(memory[0], std::byte{1}) << "what was refused changes nothing";

  recording().clear();
  EXPECT_EQ(cuMemsetD16Async(at + 2, 0x0203, 3, stream), CUDA_SUCCESS);
  EXPECT_EQ(memory[1], std::byte{1});
  for (int i = 2; i < 8; ++i) EXPECT_EQ(memory[i], std::byte(i % 2 ? 2 : 3));
  EXPECT_EQ(memory[8], std::byte{1});
  EXPECT_TRUE(synchronized()) << "it comes after what the stream has";
  const Bytes data = on_device(world().memory, 64);
  EXPECT_EQ(cuMemcpyDtoD_v2(at, world().memory, 64), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(memory, data.data(), 64), 0);
  std::memset(memory, 5, 64);
  EXPECT_EQ(cuMemcpyDtoDAsync_v2(world().memory, at, 64, stream), CUDA_SUCCESS);
  EXPECT_TRUE(on_device(world().memory, 64) == Bytes(64, std::byte{5}));
  EXPECT_EQ(cuMemHostUnregister(memory + 8), CUDA_ERROR_INVALID_VALUE) << "it begins before";
  EXPECT_EQ(cuMemHostUnregister(memory), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

// numba asks how large what is mapped is.
TEST_F(Copies, PinnedMemoryIsARangeOfTheDevices) {
  const Pinned pinned(random_bytes(5000));
  CUdeviceptr device = 0, start = 0;
  size_t bytes = 0;
  ASSERT_EQ(cuMemHostGetDevicePointer_v2(&device, pinned.at, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemGetAddressRange_v2(&start, &bytes, device + 77), CUDA_SUCCESS);
  EXPECT_EQ(start, device);
  EXPECT_EQ(bytes, 5000u);
  std::byte on_stack[8];
  EXPECT_EQ(cuMemGetAddressRange_v2(&start, &bytes, reinterpret_cast<CUdeviceptr>(on_stack)),
            CUDA_ERROR_NOT_FOUND);
}

// In the arena the device fills it, and whoever does not say "asynchronous" waits.
TEST_F(Copies, AFillOfPinnedMemoryWaitsWhereCudaDoes) {
  const Pinned pinned(random_bytes(64));
  const auto at = reinterpret_cast<CUdeviceptr>(pinned.at);
  recording().clear();
  EXPECT_EQ(cuMemsetD8Async(at, 1, 64, nullptr), CUDA_SUCCESS);
  EXPECT_FALSE(synchronized());
  EXPECT_EQ(cuMemsetD8_v2(at, 2, 64), CUDA_SUCCESS);
  EXPECT_TRUE(synchronized());
  recording().clear();
  EXPECT_EQ(cuMemsetD8_v2(world().memory, 2, 64), CUDA_SUCCESS);
  EXPECT_FALSE(synchronized()) << "device memory: CUDA does not wait";
}

TEST_F(Copies, RefusedByTheDriver) {
  const auto refuse = [](auto...) { return CUDA_ERROR_ILLEGAL_ADDRESS; };
  ScopedAnswer a(SLUICE_ON(cuMemcpyDtoHAsync_v2), refuse);
  std::byte small[16], untouched[16] = {};
  std::memset(small, 0, sizeof small);
  EXPECT_EQ(cuMemcpyDtoH_v2(small, world().memory, sizeof small), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(std::memcmp(small, untouched, sizeof small), 0);
  ScopedAnswer b(SLUICE_ON(cuMemsetD8Async), refuse);
  EXPECT_EQ(cuMemsetD8_v2(world().memory, 1, 10), CUDA_SUCCESS);
  expect_poisoned(CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace sluice::test
