// SPDX-License-Identifier: Apache-2.0
// How a worker is started.
#include "worker/options.h"

#include <gtest/gtest.h>

namespace sluice::worker {
namespace {

// What is wrong with them; "" if nothing is.
std::string refused(std::vector<const char*> more, Options* options) {
  std::vector<const char*> all = {"sluice-worker", "--control", "3", "--driver", "libcuda.so.1"};
  all.insert(all.end(), more.begin(), more.end());
  std::string error;
  return read_options(static_cast<int>(all.size()), const_cast<char**>(all.data()), options, &error)
             ? ""
             : error;
}

TEST(WorkerOptions, AreRead) {
  Options o;
  EXPECT_EQ(refused({"--libraries", "/a::/b", "--visible-devices", "GPU-1", "--confine", "session",
                     "--meter", "off"},
                    &o),
            "");
  EXPECT_EQ(o.control, 3);
  EXPECT_EQ(o.driver, "libcuda.so.1");
  EXPECT_EQ(o.libraries, (std::vector<std::string>{"/a", "/b"}));
  EXPECT_EQ(o.visible, "GPU-1");
  EXPECT_TRUE(o.waits);
  EXPECT_FALSE(o.meter);
}

TEST(WorkerOptions, WhatIsSeenBesidesIsOfAWorkerWithGpusOfItsOwn) {
  Options o;
  EXPECT_EQ(refused({"--visible-devices", "GPU-1", "--beside", "GPU-2,GPU-3"}, &o), "");
  EXPECT_EQ(o.visible, "GPU-1");
  EXPECT_EQ(o.beside, "GPU-2,GPU-3");
  Options none;
  EXPECT_EQ(refused({"--beside", "GPU-2"}, &none),
            "--beside is of a worker whose own GPUs are named: give --visible-devices");
}

// A worker that does not wait for its session's account would stay what it was started as.
TEST(WorkerOptions, AnAccountIsNotLostToAMisspeltValue) {
  Options o;
  EXPECT_EQ(refused({"--confine", "sesion"}, &o), "--confine is \"sesion\"; session is wanted");
  EXPECT_EQ(refused({"--uid", "nobody"}, &o),
            "--uid is \"nobody\"; a number from 0 to 4294967294 is wanted");
}

}  // namespace
}  // namespace sluice::worker
