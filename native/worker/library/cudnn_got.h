// SPDX-License-Identifier: Apache-2.0
// Descriptors that cuDNN gave of another one. To get them may take milliseconds (of what its
// heuristics found it looks at each engine), so it is done once: a look (cudnn_look.cc) leaves
// those of its client's descriptor with that, and the client's own call takes them
// (cudnn_backend.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "wire/cudnn_backend.h"
#include "worker/library/cudnn_backend.h"
#include "worker/library/library.h"

namespace sluice::worker {

// One answer of cudnnBackendGetAttribute. What nobody takes is destroyed with it.
class GotDescriptors {
 public:
  // Asks; `status` says whether there is an answer. q.requested is neither negative nor too much.
  GotDescriptors(const Backend& backend, BackendDescriptor from, const wire::BackendQuestion& q);
  ~GotDescriptors();
  GotDescriptors(const GotDescriptors&) = delete;

  int64_t status() const { return status_; }
  int64_t count() const { return count_; }
  // Whether cuDNN would answer the same: it was asked the same, or both ask for more than there
  // are.
  bool answers(const wire::BackendQuestion& q) const;
  // Those that there are.
  std::vector<BackendDescriptor> all() const;
  // So many, those that there are first; they are the caller's now. Fewer: cuDNN makes no more.
  std::vector<BackendDescriptor> take(size_t requested);

 private:
  friend bool keep_with(ObjectLife& owner, std::shared_ptr<GotDescriptors> got);
  int64_t make(size_t count);

  const Backend& backend_;
  const wire::BackendQuestion asked_;
  std::vector<BackendDescriptor> made_;
  int64_t status_ = 0, count_ = 0;
  size_t kept_ = 0;  // of those that may be kept in all
};

// With the descriptor that they are of, until it is destroyed or its client asks for them. False:
// too many are kept already, or it has some.
bool keep_with(ObjectLife& owner, std::shared_ptr<GotDescriptors> got);
// What is kept there and answers this, or nullptr.
std::shared_ptr<GotDescriptors> take_kept(ObjectLife& owner, const wire::BackendQuestion& q);

}  // namespace sluice::worker
