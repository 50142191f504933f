// SPDX-License-Identifier: Apache-2.0
#include "worker/code_charge.h"

#include <algorithm>

#include "worker/library/charge.h"

namespace sluice::worker {

namespace {

constexpr uint64_t kSmall = 1 << 20, kSlab = 2 << 20, kPiece = 512;

// As the driver cuts it: small variables from slabs, large ones in slabs.
uint64_t rounded(uint64_t bytes) {
  const uint64_t to = bytes > kSmall ? kSlab : kPiece;
  return bytes > ~uint64_t{0} - to ? ~uint64_t{0} : (bytes + to - 1) / to * to;
}

// Where its variables will be: a module's in its own context; a library's in each context that uses
// it, and which those will be nobody knows when it is loaded. vGPUs of one GPU share a context.
template <class F>
void for_holders(Session& s, const CodeObject& code, F&& f) {
  if (code.module_kind) return f(*s.vgpus[code.device]);
  for (auto& v : s.vgpus) {
    const auto first = std::find_if(s.vgpus.begin(), s.vgpus.end(),
                                    [&](const auto& other) { return other->gpu == v->gpu; });
    if (first->get() == v.get()) f(*v);
  }
}

}  // namespace

CodeCharge::CodeCharge(Session& s, const CodeObject& code, const ImageNeeds& needs)
    : s_(s), charged_(code) {
  charged_.bytes = std::max(needs.code_bytes, kLeastCodeBytes);
  charged_.data_bytes = needs.data_bytes ? rounded(needs.data_bytes) : 0;
  taken_ = take_for_library(s, *s.vgpus[code.device], Metered::kCode, charged_.bytes);
  if (!taken_ || charged_.data_bytes == 0) return;
  size_t done = 0;
  for_holders(s, charged_, [&](Vgpu& v) {
    if (taken_ && take_for_library(s, v, Metered::kDevice, charged_.data_bytes))
      ++done;
    else
      taken_ = false;
  });
  if (taken_) return;
  for_holders(s, charged_, [&](Vgpu& v) {
    if (done == 0) return;
    give_for_library(s, v, Metered::kDevice, charged_.data_bytes);
    --done;
  });
  give_for_library(s, *s.vgpus[code.device], Metered::kCode, charged_.bytes);
}

CodeCharge::~CodeCharge() {
  if (taken_ && !kept_) give_code(s_, charged_);
}

void CodeCharge::keep(CodeObject* code) {
  kept_ = true;
  code->bytes = charged_.bytes;
  code->data_bytes = charged_.data_bytes;
}

void give_code(Session& s, const CodeObject& code) {
  if (code.data_bytes)
    for_holders(s, code,
                [&](Vgpu& v) { give_for_library(s, v, Metered::kDevice, code.data_bytes); });
  give_for_library(s, *s.vgpus[code.device], Metered::kCode, code.bytes);
}

}  // namespace sluice::worker
