// SPDX-License-Identifier: Apache-2.0
// What a user may set, where it is looked for first, and what is said of a value that cannot be
// used.
#include "client/core/config.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

extern char** environ;

namespace sluice::client {
namespace {

class Settings : public ::testing::Test {
 protected:
  void SetUp() override {
    for (char** e = environ; *e;) {
      const std::string name = std::string(*e).substr(0, std::string(*e).find('='));
      if (name.starts_with("SLUICE_") || name.starts_with("ORION_") || name.starts_with("CUDA_"))
        unsetenv(name.c_str());
      else
        ++e;
    }
    char pattern[] = "/tmp/sluice-config-XXXXXX";
    home_ = mkdtemp(pattern);
    setenv("HOME", home_.c_str(), 1);
    std::filesystem::create_directories(home_ + "/.sluice");
  }
  ~Settings() override { std::filesystem::remove_all(home_); }
  void file(const std::string& text) { std::ofstream(home_ + "/.sluice/client.conf") << text; }
  Config with(const char* name, const char* value) {
    setenv(name, value, 1);
    Config c = read_config();
    unsetenv(name);
    return c;
  }

  std::string home_;
};

TEST_F(Settings, DefaultsNeedNoFile) {
  const Config c = read_config();
  EXPECT_EQ(c.error, "");
  EXPECT_EQ(c.channel, "auto");
  EXPECT_EQ(c.vgpu_count, 1u);
  EXPECT_EQ(c.gmem_mib, 0u);
  EXPECT_EQ(c.ratio_percent, 0u);
  EXPECT_EQ(c.wait_seconds, -1);
  EXPECT_TRUE(c.log_to_screen);
  EXPECT_FALSE(c.stats);
  EXPECT_EQ(c.controller, "127.0.0.1:9123");
  EXPECT_EQ(c.token_file, home_ + "/.sluice/token");
  EXPECT_EQ(c.server_socket, "/run/sluice/server.sock");
  EXPECT_EQ(c.ca_file + c.token + c.ivshmem + c.job, "");
  EXPECT_TRUE(c.enable_net);
  EXPECT_FALSE(c.cross_node || c.options.preempt || c.options.same_gpu);
  EXPECT_EQ(c.priority, 0);
  EXPECT_EQ(c.job_processes, 0u);
  EXPECT_EQ(c.options.mode, "auto");
  EXPECT_EQ(c.options.sharing, "auto");
  EXPECT_EQ(c.options.project + c.options.gpu_model + c.options.gpu_architecture, "");
  EXPECT_TRUE(c.options.labels.empty());
}

TEST_F(Settings, RequestOptionsComeFromTheEnvironmentOrAFile) {
  file("[client]\nproject = vision\nlabels = rack=r12, fast=yes\nmode = reserved\n");
  Config c = with("SLUICE_GPU_MODEL", "NVIDIA H200");
  EXPECT_EQ(c.error, "");
  EXPECT_EQ(c.options.project, "vision");
  EXPECT_EQ(c.options.gpu_model, "NVIDIA H200");
  EXPECT_EQ(c.options.mode, "reserved");
  ASSERT_EQ(c.options.labels.size(), 2u);
  EXPECT_EQ(c.options.labels[1].first + "=" + c.options.labels[1].second, "fast=yes");
  EXPECT_TRUE(with("SLUICE_PREEMPT", "1").options.preempt);
  EXPECT_TRUE(with("SLUICE_SAME_GPU", "yes").options.same_gpu);
  EXPECT_EQ(with("SLUICE_SHARING", "capped").options.sharing, "capped");
  EXPECT_NE(with("SLUICE_SHARING", "mine").error, "");
  EXPECT_EQ(with("SLUICE_GPU_ARCHITECTURE", "sm_90").options.gpu_architecture, "sm_90");
}

TEST_F(Settings, RequestOptionsThatCannotBeAreRefusedByName) {
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::string>>{
           {"SLUICE_PROJECT", "a/b"},
           {"SLUICE_PROJECT", "a\nb=c"},
           {"SLUICE_PROJECT", std::string(121, 'x')},
           {"SLUICE_LABELS", "rack"},
           {"SLUICE_LABELS", "rack=r1,=x"},
           {"SLUICE_MODE", "mine"},
           {"SLUICE_GPU_ARCHITECTURE", "sm 90"},
           {"SLUICE_PREEMPT", "perhaps"}}) {
    const Config c = with(name, value.c_str());
    EXPECT_NE(c.error.find(name), std::string::npos) << name << ": " << c.error;
    EXPECT_NE(c.error.find("wanted"), std::string::npos) << c.error;
  }
}

TEST_F(Settings, WhatAnOptionMayBeIsSaidAsItIsJudged) {
  const auto said = [this](const char* name, const char* value) {
    const std::string error = with(name, value).error;
    return error.substr(std::min(error.size(), error.find(": ") + 2));
  };
  EXPECT_EQ(said("SLUICE_MODE", "mine"), "one of auto, reserved, on-demand is wanted");
  EXPECT_EQ(said("SLUICE_PROJECT", "a/b"),
            "at most 120 letters, digits or any of \"._-\" is wanted");
  EXPECT_EQ(said("SLUICE_GPU_MODEL", "h200;"),
            "at most 120 letters, digits or any of \" ._-()/\" is wanted");
  EXPECT_EQ(said("SLUICE_GPU_ARCHITECTURE", "sm-90"),
            "at most 32 letters, digits or any of \"._\" is wanted");
  EXPECT_EQ(said("SLUICE_LABELS", "rack"),
            "at most 16 pairs NAME=VALUE with commas, such as rack=r12, is wanted");
}

std::string visible(const char* text, uint32_t count) {
  std::string found;
  for (uint32_t device : visible_devices(text, count)) found += std::to_string(device);
  return found;
}

TEST(VisibleDevices, AreListedAsForCuda) {
  EXPECT_EQ(visible(nullptr, 3), "012");
  EXPECT_EQ(visible("", 3), "");
  EXPECT_EQ(visible("-1", 3), "");
  EXPECT_EQ(visible("NoDevFiles", 3), "");
  EXPECT_EQ(visible("1", 3), "1");
  EXPECT_EQ(visible(" 2 , 0", 3), "20");
  EXPECT_EQ(visible("0,1,-1,2", 3), "01") << "nothing behind the first that is none";
  EXPECT_EQ(visible("0,7,1", 3), "0");
  EXPECT_EQ(visible("0,,1", 3), "0");
  EXPECT_EQ(visible("1,0,1", 3), "") << "a list with one twice is no list";
  EXPECT_EQ(visible("99999999999999999999", 3), "");
  EXPECT_EQ(visible("GPU-8a1c,GPU-77", 3), "01");
  EXPECT_EQ(visible("GPU-8a1c,GPU-77", 1), "0");
}

TEST_F(Settings, HiddenGpusAreNotAskedFor) {
  setenv("SLUICE_VGPU", "4", 1);
  EXPECT_EQ(read_config().visible.size(), 4u);
  EXPECT_EQ(with("CUDA_VISIBLE_DEVICES", "3,1").visible, (std::vector<uint32_t>{3, 1}));
  EXPECT_TRUE(with("CUDA_VISIBLE_DEVICES", "4").visible.empty());
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_TRUE(read_config().visible.empty()) << "set to nothing is not the same as not set";
  unsetenv("CUDA_VISIBLE_DEVICES");
  unsetenv("SLUICE_VGPU");
}

TEST_F(Settings, TheFileIsRead) {
  file(
      "; a comment\n[controller]\n  controller_addr = pool.example:9123   # inline\n\n[client]\r\n"
      "vgpu_count=2\ngmem = 4096\nratio=50\nchannel = tcp\ncross_node=yes\npriority=-5\nwait = "
      "30\nenable_net=off\n"
      "no equal sign\nunknown = 1\n[log]\nlog_to_screen = false\n[other]\ngmem = 1\n");
  const Config c = read_config();
  EXPECT_EQ(c.error, "");
  EXPECT_EQ(c.controller, "pool.example:9123");
  EXPECT_EQ(c.vgpu_count, 2u);
  EXPECT_EQ(c.gmem_mib, 4096u);
  EXPECT_EQ(c.ratio_percent, 50u);
  EXPECT_EQ(c.channel, "tcp");
  EXPECT_TRUE(c.cross_node);
  EXPECT_EQ(c.priority, -5);
  EXPECT_EQ(c.wait_seconds, 30);
  EXPECT_FALSE(c.enable_net);
  EXPECT_FALSE(c.log_to_screen);
}

TEST_F(Settings, TheEnvironmentComesFirstAndBlankIsNotSet) {
  file("[client]\ngmem=100\nvgpu_count=3\n");
  EXPECT_EQ(with("SLUICE_GMEM", "200").gmem_mib, 200u);
  EXPECT_EQ(with("SLUICE_GMEM", "200").vgpu_count, 3u);
  EXPECT_EQ(with("SLUICE_GMEM", "").gmem_mib, 100u);
}

TEST_F(Settings, OrionNamesAreUnderstoodAndOurOwnComeFirst) {
  EXPECT_EQ(with("ORION_GMEM", "300").gmem_mib, 300u);
  EXPECT_EQ(with("ORION_VGPU", "4").vgpu_count, 4u);
  EXPECT_EQ(with("ORION_RATIO", "25").ratio_percent, 25u);
  EXPECT_EQ(with("ORION_CONTROLLER", "1.2.3.4:9123").controller, "1.2.3.4:9123");
  EXPECT_TRUE(with("ORION_CROSS_NODE", "1").cross_node);
  setenv("SLUICE_GMEM", "5", 1);
  EXPECT_EQ(with("ORION_GMEM", "300").gmem_mib, 5u);
}

TEST_F(Settings, ABadNumberNamesItsPlaceAndWhatIsWanted) {
  struct Case {
    const char *name, *value, *range;
  };
  for (const Case& c :
       {Case{"SLUICE_VGPU", "0", "1 to 64"}, Case{"SLUICE_VGPU", "65", "1 to 64"},
        Case{"SLUICE_VGPU", "two", "1 to 64"}, Case{"SLUICE_RATIO", "101", "1 to 100"},
        Case{"SLUICE_GMEM", "-1", "1 to"}, Case{"SLUICE_GMEM", "12GiB", "1 to"},
        Case{"SLUICE_GMEM", "99999999999999999999", "1 to"}, Case{"ORION_GMEM", "0x10", "1 to"},
        Case{"SLUICE_WAIT", "-2", "-1 to 1073741824 is wanted"},
        Case{"SLUICE_PRIORITY", "1.5", "-1000 to 1000"},
        Case{"SLUICE_PRIORITY", "1001", "-1000 to 1000"},
        Case{"SLUICE_JOB_PROCESSES", "257", "1 to 256"}, Case{"SLUICE_DEBUG", "10", "0 to 9"}}) {
    const std::string error = with(c.name, c.value).error;
    EXPECT_NE(error.find(std::string("environment variable ") + c.name + " is \"" + c.value + "\""),
              std::string::npos)
        << error;
    EXPECT_NE(error.find(c.range), std::string::npos) << error;
  }
}

TEST_F(Settings, ABadValueInTheFileNamesItsLine) {
  file("[client]\nratio=50\ngmem = lots\n");
  EXPECT_NE(read_config().error.find(home_ + "/.sluice/client.conf:3 is \"lots\""),
            std::string::npos)
      << read_config().error;
  EXPECT_EQ(with("SLUICE_GMEM", "1").error, "") << "what is overruled is not judged";
  file("[client]\ngmem =\n");
  EXPECT_NE(read_config().error.find("client.conf:2"), std::string::npos) << read_config().error;
}

TEST_F(Settings, FlagsAreWordsAndNothingElse) {
  for (const char* yes : {"1", "true", "yes", "on"})
    EXPECT_TRUE(with("SLUICE_STATS", yes).stats) << yes;
  for (const char* no : {"0", "false", "no", "off"})
    EXPECT_FALSE(with("SLUICE_STATS", no).stats) << no;
  const std::string error = with("SLUICE_STATS", "maybe").error;
  EXPECT_NE(error.find("SLUICE_STATS is \"maybe\": true or false is wanted"), std::string::npos)
      << error;
}

TEST_F(Settings, AnUnknownChannelIsSaid) {
  const std::string error = with("SLUICE_CHANNEL", "pigeon").error;
  EXPECT_EQ(error,
            "the channel \"pigeon\" is unknown: auto, shm, ivshmem, vsock, tcp or rdma is wanted");
}

TEST_F(Settings, TheFirstErrorStands) {
  file("[client]\nvgpu_count=0\ngmem=0\n");
  EXPECT_NE(read_config().error.find(":2 "), std::string::npos) << read_config().error;
}

}  // namespace
}  // namespace sluice::client
