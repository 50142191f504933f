// SPDX-License-Identifier: Apache-2.0
// Code images of the node: what is read must be what its name says, whatever lies there.
#include "worker/code_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace sluice::worker {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> bytes(size_t n, unsigned step = 1) {
  std::vector<std::byte> all(n);
  for (size_t i = 0; i < n; ++i) all[i] = static_cast<std::byte>(i * step % 251);
  return all;
}

TEST(ContentHash, IsBlake2b) {
  // What hashlib.blake2b(content, digest_size=32) says, at the borders of blocks.
  const std::pair<size_t, const char*> known[] = {
      {0, "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"},
      {1, "03170a2e7597b7b7e3d84c05391d139a62b157e78786d8c082f29dcf4c111314"},
      {127, "f2fe67ff342e21b8f45e8f2e0bcd1d9243245d50ee6c78042e9c491388791c72"},
      {128, "c3582f71ebb2be66fa5dd750f80baae97554f3b015663c8be377cfcb2488c1d1"},
      {129, "f7f3c46ba2564ff4c4c162da1f5b605f9f1c4aa6a20652a9f9a337c1a2f5b9c9"},
      {255, "d9ef0fc521b4266d16df662bec231bc2ec3989e7adeaf63169c295dc239dbbea"},
      {256, "582f782226018ec33076bd8d1c42413530ac7e1126260ffc0f306ba3befc3f24"},
      {257, "227e15ed64ee8e93eb7bc53828f76eed974f2c4ab1408c3d08f212b7f8d69904"},
      {1000, "b372d0608f720c8c3dd41e9c8eecb10143b41abe520b616607e754bf79c08331"}};
  for (const auto& [n, hash] : known) EXPECT_EQ(wire::hex(wire::content_hash(bytes(n))), hash) << n;
}

class CodeCacheTest : public ::testing::Test {
 protected:
  struct Told {
    std::string verb, name;
    std::vector<std::byte> content;
    int seals = 0;
  };

  void SetUp() override {
    char name[] = "/tmp/sluice-code-XXXXXX";
    root_ = mkdtemp(name);
    fs::create_directory(root_ / "own");
    fs::create_directory(root_ / "shared");
    cache = std::make_unique<CodeCache>(
        open((root_ / "own").c_str(), O_RDONLY | O_DIRECTORY),
        open((root_ / "shared").c_str(), O_RDONLY | O_DIRECTORY),
        [this](const char* verb, const std::string& n, int fd) {
          Told t{verb, n, {}, 0};
          if (fd >= 0) {
            struct stat st {};
            fstat(fd, &st);
            t.content.resize(static_cast<size_t>(st.st_size));
            EXPECT_EQ(pread(fd, t.content.data(), t.content.size(), 0), st.st_size);
            t.seals = fcntl(fd, F_GET_SEALS);
          }
          told.push_back(t);
        });
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const char* folder, const std::string& name, const std::vector<std::byte>& content) {
    std::ofstream(root_ / folder / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()),
               static_cast<std::streamsize>(content.size()));
  }

  fs::path root_;
  std::unique_ptr<CodeCache> cache;
  std::vector<Told> told;
};

TEST_F(CodeCacheTest, FindsItsOwnAndWhatIsShared) {
  const auto a = bytes(100000), b = bytes(70000, 3);
  write("own", wire::hex(wire::content_hash(a)), a);
  write("shared", wire::hex(wire::content_hash(b)), b);
  std::vector<std::byte> image;
  EXPECT_TRUE(cache->find(wire::content_hash(a), a.size(), &image));
  EXPECT_EQ(image, a);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].verb, "code_used");
  EXPECT_EQ(told[0].name, wire::hex(wire::content_hash(a)));
  EXPECT_TRUE(cache->find(wire::content_hash(b), b.size(), &image));
  EXPECT_EQ(image, b);
  EXPECT_EQ(told.size(), 1u) << "the shared folder is the operator's";
  EXPECT_FALSE(cache->find(wire::content_hash(bytes(5)), 5, &image));
  EXPECT_TRUE(image.empty());
}

TEST_F(CodeCacheTest, WhatIsNotWhatItsNameSaysIsNotUsed) {
  const auto right = bytes(100000);
  const auto hash = wire::content_hash(right);
  const std::string name = wire::hex(hash);
  std::vector<std::byte> image;
  auto changed = right;
  changed[50000] ^= std::byte{1};
  auto shorter = right;
  shorter.pop_back();
  for (const auto& wrong : {changed, shorter, bytes(0), bytes(100000, 7)}) {
    told.clear();
    write("own", name, wrong);
    EXPECT_FALSE(cache->find(hash, right.size(), &image));
    EXPECT_TRUE(image.empty());
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].verb, "code_damaged");
    EXPECT_EQ(told[0].name, name);
  }
  write("shared", name, right);
  EXPECT_TRUE(cache->find(hash, right.size(), &image)) << "there is a right one elsewhere";
  EXPECT_EQ(image, right);
  EXPECT_FALSE(cache->find(hash, right.size() - 1, &image)) << "the size belongs to the name";
}

TEST_F(CodeCacheTest, OnlyPlainFilesAreRead) {
  const auto right = bytes(100000);
  const std::string name = wire::hex(wire::content_hash(right));
  std::vector<std::byte> image;
  write("shared", "elsewhere", right);
  fs::create_symlink(root_ / "shared" / "elsewhere", root_ / "own" / name);
  EXPECT_FALSE(cache->find(wire::content_hash(right), right.size(), &image));
  fs::remove(root_ / "own" / name);
  fs::create_directory(root_ / "own" / name);
  EXPECT_FALSE(cache->find(wire::content_hash(right), right.size(), &image));
  fs::remove(root_ / "own" / name);
  ASSERT_EQ(mkfifo((root_ / "own" / name).c_str(), 0600), 0);
  EXPECT_FALSE(cache->find(wire::content_hash(right), right.size(), &image)) << "and does not wait";
}

TEST_F(CodeCacheTest, WhatItOffersCannotChangeAnyMore) {
  const auto image = bytes(200000);
  cache->offer(image);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].verb, "code");
  EXPECT_EQ(told[0].content, image);
  EXPECT_EQ(told[0].seals & (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW),
            F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_TRUE(fs::is_empty(root_ / "own")) << "the server writes";
}

}  // namespace
}  // namespace sluice::worker
