// SPDX-License-Identifier: Apache-2.0
// The linker: what is added arrives with its options and name, and what comes out comes back.
#include <atomic>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

class Linking : public RoundTrip {
 protected:
  char info[64] = "", error[64] = "";
  CUjit_option names[5] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                           CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                           CU_JIT_OPTIMIZATION_LEVEL};
  void* values[5] = {info, reinterpret_cast<void*>(sizeof info), error,
                     reinterpret_cast<void*>(sizeof error), reinterpret_cast<void*>(2)};
  long sent(uint16_t function) { return std::count(seen().begin(), seen().end(), function); }
};

struct Input {
  CUjitInputType type;
  std::string data, name;
  std::vector<std::pair<CUjit_option, void*>> options;
};

TEST_F(Linking, InputsArriveAndTheProductComesBack) {
  std::string product(700'000, 'x');
  for (size_t i = 0; i < product.size(); ++i) product[i] = static_cast<char>(i * 7);
  std::vector<Input> inputs;
  uint64_t level = 0;
  char* their_info = nullptr;
  ScopedAnswer create(SLUICE_ON(cuLinkCreate_v2),
                      [&](unsigned n, CUjit_option* o, void** v, CUlinkState* state) {
                        for (unsigned i = 0; i < n; ++i) {
                          if (o[i] == CU_JIT_OPTIMIZATION_LEVEL)
                            level = reinterpret_cast<uint64_t>(v[i]);
                          if (o[i] == CU_JIT_INFO_LOG_BUFFER) their_info = static_cast<char*>(v[i]);
                        }
                        *state = reinterpret_cast<CUlinkState>(0x77);
                        return CUDA_SUCCESS;
                      });
  ScopedAnswer add(SLUICE_ON(cuLinkAddData_v2), [&](CUlinkState state, CUjitInputType type,
                                                    void* data, size_t bytes, const char* name,
                                                    unsigned n, CUjit_option* o, void** v) {
    EXPECT_EQ(state, reinterpret_cast<CUlinkState>(0x77));
    Input in{type, std::string(static_cast<char*>(data), bytes), name ? name : "-", {}};
    for (unsigned i = 0; i < n; ++i) in.options.emplace_back(o[i], v[i]);
    inputs.push_back(in);
    std::strcat(their_info, "added ");
    return CUDA_SUCCESS;
  });
  ScopedAnswer complete(SLUICE_ON(cuLinkComplete), [&](CUlinkState, void** image, size_t* bytes) {
    *image = product.data();
    *bytes = product.size();
    return CUDA_SUCCESS;
  });
  CUlinkState link = nullptr;
  ASSERT_EQ(cuLinkCreate_v2(5, names, values, &link), CUDA_SUCCESS);
  char ptx[] = ".version 8.0";
  CUjit_option limit[] = {CU_JIT_MAX_REGISTERS};
  void* registers[] = {reinterpret_cast<void*>(32)};
  ASSERT_EQ(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, ptx, sizeof ptx, "a.ptx", 1, limit, registers),
            CUDA_SUCCESS);
  EXPECT_STREQ(info, "added ");
  EXPECT_EQ(reinterpret_cast<size_t>(values[1]), 6u);
  std::string cubin("cub\0\1\2", 6);
  ASSERT_EQ(cuLinkAddData_v2(link, CU_JIT_INPUT_CUBIN, cubin.data(), cubin.size(), nullptr, 0,
                             nullptr, nullptr),
            CUDA_SUCCESS);
  void* image = nullptr;
  size_t bytes = 0;
  ASSERT_EQ(cuLinkComplete(link, &image, &bytes), CUDA_SUCCESS);
  EXPECT_EQ(std::string(static_cast<char*>(image), bytes), product);
  EXPECT_EQ(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, ptx, sizeof ptx, "", 0, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuLinkDestroy(link), CUDA_SUCCESS);
  EXPECT_EQ(cuLinkDestroy(link), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(recording().only("cuLinkDestroy").at<CUlinkState>(0),
            reinterpret_cast<CUlinkState>(0x77));

  EXPECT_EQ(level, 2u);
  ASSERT_EQ(inputs.size(), 2u);
  EXPECT_EQ(inputs[0].type, CU_JIT_INPUT_PTX);
  EXPECT_EQ(inputs[0].data, std::string(ptx, sizeof ptx)) << "with one NUL";
  EXPECT_EQ(inputs[0].name, "a.ptx");
  ASSERT_EQ(inputs[0].options.size(), 1u);
  EXPECT_EQ(inputs[0].options[0].first, CU_JIT_MAX_REGISTERS);
  EXPECT_EQ(inputs[1].data, cubin);
  EXPECT_EQ(inputs[1].name, "-");
}

TEST_F(Linking, InputsOfEveryKindArriveAsTheyAre) {
  std::vector<std::pair<CUjitInputType, std::string>> added;
  ScopedAnswer add(SLUICE_ON(cuLinkAddData_v2),
                   [&](CUlinkState, CUjitInputType type, void* data, size_t bytes, const char*,
                       unsigned, CUjit_option*, void**) {
                     added.emplace_back(type, std::string(static_cast<char*>(data), bytes));
                     return CUDA_SUCCESS;
                   });
  CUlinkState link = nullptr;
  ASSERT_EQ(cuLinkCreate_v2(0, nullptr, nullptr, &link), CUDA_SUCCESS);
  std::vector<std::pair<CUjitInputType, std::string>> wanted;
  for (const CUjitInputType type : {CU_JIT_INPUT_CUBIN, CU_JIT_INPUT_FATBINARY, CU_JIT_INPUT_OBJECT,
                                    CU_JIT_INPUT_LIBRARY, CU_JIT_INPUT_NVVM}) {
    std::string input(100'000 + type, 'x');  // longer than what a command carries
    for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<char>(i * 11 + type);
    ASSERT_EQ(cuLinkAddData_v2(link, type, input.data(), input.size(), "", 0, nullptr, nullptr),
              CUDA_SUCCESS);
    wanted.emplace_back(type, input);
  }
  EXPECT_EQ(added, wanted);
  EXPECT_EQ(cuLinkDestroy(link), CUDA_SUCCESS);
}

TEST_F(Linking, InputsThatClaimMoreThanHasComeDoNotReachTheLinker) {
  CUlinkState link = nullptr;
  ASSERT_EQ(cuLinkCreate_v2(0, nullptr, nullptr, &link), CUDA_SUCCESS);
  std::string elf(
      "\x7f"
      "ELF\2\1\1");
  elf.resize(64, '\xff');
  uint64_t fat[] = {0x00100001ba55ed50, 65536, 0};
  recording().clear();
  EXPECT_EQ(cuLinkAddData_v2(link, CU_JIT_INPUT_CUBIN, elf.data(), elf.size(), nullptr, 0, nullptr,
                             nullptr),
            CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(
      cuLinkAddData_v2(link, CU_JIT_INPUT_FATBINARY, fat, sizeof fat, nullptr, 0, nullptr, nullptr),
      CUDA_ERROR_INVALID_IMAGE);
  EXPECT_TRUE(recording().calls_of("cuLinkAddData_v2").empty());
  EXPECT_EQ(cuLinkDestroy(link), CUDA_SUCCESS);
}

TEST_F(Linking, WhatTheLinkerSaysReachesItsUser) {
  char* log = nullptr;
  ScopedAnswer create(SLUICE_ON(cuLinkCreate_v2),
                      [&](unsigned n, CUjit_option* o, void** v, CUlinkState* state) {
                        for (unsigned i = 0; i < n; ++i)
                          if (o[i] == CU_JIT_ERROR_LOG_BUFFER) log = static_cast<char*>(v[i]);
                        *state = reinterpret_cast<CUlinkState>(0x78);
                        return CUDA_SUCCESS;
                      });
  ScopedAnswer add(SLUICE_ON(cuLinkAddData_v2), [&](CUlinkState, CUjitInputType, void*, size_t,
                                                    const char*, unsigned, CUjit_option*, void**) {
    std::strcpy(log, "line 3: no");
    return CUDA_ERROR_INVALID_PTX;
  });
  CUlinkState link = nullptr;
  ASSERT_EQ(cuLinkCreate_v2(5, names, values, &link), CUDA_SUCCESS);
  char ptx[] = "nonsense";
  EXPECT_EQ(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, ptx, sizeof ptx, "", 0, nullptr, nullptr),
            CUDA_ERROR_INVALID_PTX);
  EXPECT_STREQ(error, "line 3: no");
  EXPECT_EQ(cuLinkDestroy(link), CUDA_SUCCESS);
}

TEST_F(Linking, ALinkThatCannotBeMadeSaysSoAtItsFirstInput) {
  ScopedAnswer create(SLUICE_ON(cuLinkCreate_v2),
                      [](unsigned, CUjit_option*, void**, CUlinkState*) {
                        return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
                      });
  CUlinkState link = nullptr;
  ASSERT_EQ(cuLinkCreate_v2(0, nullptr, nullptr, &link), CUDA_SUCCESS);
  char ptx[] = ".version 8.0";
  EXPECT_EQ(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, ptx, sizeof ptx, "", 0, nullptr, nullptr),
            CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
  EXPECT_EQ(cuLinkDestroy(link), CUDA_SUCCESS);
}

// NVIDIA's compiler does not bear it otherwise (worker/compiler.h).
TEST_F(Linking, TheDriverLinksAndCompilesOnOneThreadWhoeverAsks) {
  std::mutex mutex;
  std::vector<std::pair<std::string, std::thread::id>> asked;
  const auto note = [&](const char* what) {
    std::lock_guard lock(mutex);
    asked.emplace_back(what, std::this_thread::get_id());
    return CUDA_SUCCESS;
  };
  ScopedAnswer create(SLUICE_ON(cuLinkCreate_v2),
                      [&](unsigned, CUjit_option*, void**, CUlinkState* state) {
                        *state = reinterpret_cast<CUlinkState>(0x79);
                        return note("create");
                      });
  ScopedAnswer add(SLUICE_ON(cuLinkAddData_v2),
                   [&](CUlinkState, CUjitInputType, void*, size_t, const char*, unsigned,
                       CUjit_option*, void**) { return note("add"); });
  std::string product("product");
  ScopedAnswer complete(SLUICE_ON(cuLinkComplete), [&](CUlinkState, void** image, size_t* bytes) {
    *image = product.data(), *bytes = product.size();
    return note("complete");
  });
  ScopedAnswer destroy(SLUICE_ON(cuLinkDestroy), [&](CUlinkState) { return note("destroy"); });
  ScopedAnswer load(SLUICE_ON(cuModuleLoadDataEx),
                    [&](CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
                      *module = reinterpret_cast<CUmodule>(0x80);
                      return note("load");
                    });
  // Each call from a thread that lives on.
  std::vector<std::thread::id> callers;
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  const auto elsewhere = [&](auto call) {
    std::promise<CUresult> done;
    threads.emplace_back([&, call] {
      cuCtxSetCurrent(world().contexts[0]);
      done.set_value(call());
      over.wait(false);
    });
    callers.push_back(threads.back().get_id());
    EXPECT_EQ(done.get_future().get(), CUDA_SUCCESS);
  };
  CUlinkState link = nullptr;
  char ptx[] = ".version 8.0";
  void* image = nullptr;
  size_t bytes = 0;
  CUmodule module = nullptr;
  elsewhere([&] { return cuLinkCreate_v2(0, nullptr, nullptr, &link); });
  elsewhere([&] {
    return cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, ptx, sizeof ptx, "", 0, nullptr, nullptr);
  });
  elsewhere([&] { return cuLinkComplete(link, &image, &bytes); });
  elsewhere([&] { return cuLinkDestroy(link); });
  elsewhere([&] { return cuModuleLoadDataEx(&module, ptx, 0, nullptr, nullptr); });
  over = true;
  over.notify_all();
  for (std::thread& t : threads) t.join();
  ASSERT_EQ(asked.size(), 5u);
  for (const auto& [what, thread] : asked) {
    EXPECT_EQ(thread, asked[0].second) << what;
    for (std::thread::id caller : callers) EXPECT_NE(thread, caller) << what;
  }
}

TEST_F(Linking, WhatMakesNoSenseIsRefusedHere) {
  CUlinkState link = nullptr;
  EXPECT_EQ(cuLinkCreate_v2(1, nullptr, nullptr, &link), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLinkCreate_v2(0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuLinkCreate_v2(0, nullptr, nullptr, &link), CUDA_SUCCESS);
  seen().clear();
  char ptx[] = "x";
  EXPECT_EQ(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, nullptr, 3, "", 0, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLinkAddData_v2(link, CU_JIT_NUM_INPUT_TYPES, ptx, 1, "", 0, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLinkAddFile_v2(link, CU_JIT_INPUT_PTX, "/no/such/file", 0, nullptr, nullptr),
            CUDA_ERROR_FILE_NOT_FOUND);
  EXPECT_EQ(sent(wire::kLinkAdd) + sent(wire::kUpload), 0);
  EXPECT_EQ(cuLinkDestroy(link), CUDA_SUCCESS);
}

}  // namespace
}  // namespace sluice::test
