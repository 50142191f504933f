// SPDX-License-Identifier: Apache-2.0
// Code that the node has kept: asked for by hash before it is sent, and sent when the node has
// none.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

class KeptCode : public RoundTrip {
 protected:
  void SetUp() override {
    RoundTrip::SetUp();
    char name[] = "/tmp/sluice-kept-XXXXXX";
    folder_ = mkdtemp(name);
    // What the server does with what it is told.
    const auto tell = [this](const char* verb, const std::string& n, int fd) {
      told.push_back(verb);
      if (std::string(verb) == "code_damaged") fs::remove(folder_ / n);
      if (fd < 0) return;
      std::vector<std::byte> content(static_cast<size_t>(lseek(fd, 0, SEEK_END)));
      EXPECT_EQ(pread(fd, content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
      std::ofstream(folder_ / wire::hex(wire::content_hash(content)), std::ios::binary)
          .write(reinterpret_cast<const char*>(content.data()),
                 static_cast<std::streamsize>(content.size()));
    };
    worker_session().code_cache = std::make_unique<worker::CodeCache>(
        open(folder_.c_str(), O_RDONLY | O_DIRECTORY), -1, tell);
    client::Session::get()->node_keeps_code = true;
  }
  void TearDown() override {
    client::Session::get()->node_keeps_code = false;
    worker_session().code_cache.reset();
    fs::remove_all(folder_);
    RoundTrip::TearDown();
  }
  static std::string image(size_t bytes, char fill) {
    std::string text = ".version 8.0 // ";
    text.resize(bytes - 1, fill);
    return text;  // its NUL travels too
  }
  // Loads and unloads it; what was sent, and what the driver was given.
  CUresult load(const std::string& text, std::string* got = nullptr) {
    seen().clear();
    recording().clear();
    CUmodule module = nullptr;
    auto& slot = SLUICE_ON(cuModuleLoadDataEx);
    const auto before = slot;
    ScopedAnswer a(slot, [&](CUmodule* m, const void* data, unsigned n, CUjit_option* o, void** v) {
      if (got) *got = static_cast<const char*>(data);
      return before(m, data, n, o, v);
    });
    const CUresult e = cuModuleLoadData(&module, text.c_str());
    if (e == CUDA_SUCCESS) {
      EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
    }
    return e;
  }
  long sent(uint16_t function) { return std::count(seen().begin(), seen().end(), function); }

  fs::path folder_;
  std::vector<std::string> told;
};

TEST_F(KeptCode, TravelsOnce) {
  const std::string text = image(300000, 'a');
  std::string got;
  ASSERT_EQ(load(text, &got), CUDA_SUCCESS);
  EXPECT_EQ(got, text);
  EXPECT_EQ(sent(wire::kCodeLoadKnown), 1);
  EXPECT_EQ(sent(wire::kCodeLoad), 1);
  EXPECT_GT(sent(wire::kUpload), 0);
  EXPECT_EQ(told, std::vector<std::string>{"code"});
  ASSERT_EQ(load(text, &got), CUDA_SUCCESS);
  EXPECT_EQ(got, text);
  EXPECT_EQ(sent(wire::kCodeLoadKnown), 1);
  EXPECT_EQ(sent(wire::kCodeLoad) + sent(wire::kUpload), 0);
  EXPECT_EQ(told.back(), "code_used");
}

TEST_F(KeptCode, ADamagedImageIsSentAgain) {
  const std::string text = image(300000, 'b');
  ASSERT_EQ(load(text), CUDA_SUCCESS);
  const fs::path file = *fs::directory_iterator(folder_);
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).put('X');
  std::string got;
  ASSERT_EQ(load(text, &got), CUDA_SUCCESS);
  EXPECT_EQ(got, text);
  EXPECT_EQ(sent(wire::kCodeLoad), 1);
  ASSERT_EQ(load(text, &got), CUDA_SUCCESS);
  EXPECT_EQ(sent(wire::kCodeLoad), 0) << "the right one is there again";
}

TEST_F(KeptCode, SmallImagesAreNotAskedFor) {
  ASSERT_EQ(load(image(wire::kKeptCodeBytes, 'c')), CUDA_SUCCESS);
  EXPECT_EQ(sent(wire::kCodeLoadKnown), 0);
  EXPECT_TRUE(told.empty());
}

TEST_F(KeptCode, WhatTheDriverRefusesIsNotKept) {
  ScopedAnswer a(SLUICE_ON(cuModuleLoadDataEx), [](CUmodule*, const void*, unsigned, CUjit_option*,
                                                   void**) { return CUDA_ERROR_INVALID_PTX; });
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoadData(&module, image(100000, 'd').c_str()), CUDA_ERROR_INVALID_PTX);
  EXPECT_TRUE(told.empty());
}

TEST_F(KeptCode, TheDriversNotFoundIsNoMiss) {
  const std::string text = image(100000, 'e');
  ASSERT_EQ(load(text), CUDA_SUCCESS);
  ScopedAnswer a(SLUICE_ON(cuModuleLoadDataEx), [](CUmodule*, const void*, unsigned, CUjit_option*,
                                                   void**) { return CUDA_ERROR_NOT_FOUND; });
  CUmodule module = nullptr;
  seen().clear();
  EXPECT_EQ(cuModuleLoadData(&module, text.c_str()), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(sent(wire::kCodeLoad), 0);
}

}  // namespace
}  // namespace sluice::test
