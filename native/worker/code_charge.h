// SPDX-License-Identifier: Apache-2.0
// What loaded code is charged, before the driver loads it: its variables to the vGPU's memory, as
// what libraries take is (library/charge.h), and the image beside it, to what is as much again.
// Used by code.cc; what it says of an image comes from image/image.h.
#pragma once

#include "worker/image/image.h"
#include "worker/session.h"

namespace sluice::worker {

// The driver takes some memory for every image, however small (3 KiB with one function, H200,
// driver 580).
constexpr uint64_t kLeastCodeBytes = 4 << 10;

class CodeCharge {
 public:
  CodeCharge(Session& s, const CodeObject& code, const ImageNeeds& needs);
  ~CodeCharge();
  CodeCharge(const CodeCharge&) = delete;
  // False: the vGPU has not so much left.
  bool taken() const { return taken_; }
  // From here on it is the object's: `code` says what give_code() has to give back.
  void keep(CodeObject* code);

 private:
  Session& s_;
  CodeObject charged_;
  bool taken_ = false, kept_ = false;
};

void give_code(Session& s, const CodeObject& code);

}  // namespace sluice::worker
