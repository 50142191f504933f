// SPDX-License-Identifier: Apache-2.0
#include "worker/library/cudnn_got.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace sluice::worker {

namespace {
constexpr int64_t kSuccess = 0;
constexpr size_t kMostKept = 4096;  // descriptors, which nobody may ask for
std::atomic<size_t> g_kept{0};
}  // namespace

GotDescriptors::GotDescriptors(const Backend& backend, BackendDescriptor from,
                               const wire::BackendQuestion& q)
    : backend_(backend), asked_(q) {
  status_ = make(static_cast<size_t>(q.requested));
  if (status_ == kSuccess)
    status_ = backend.get(from, static_cast<int32_t>(q.name), static_cast<int32_t>(q.type),
                          q.requested, &count_, made_.data());
}

GotDescriptors::~GotDescriptors() {
  for (BackendDescriptor one : made_) backend_.destroy(one);
  g_kept.fetch_sub(kept_);
}

int64_t GotDescriptors::make(size_t count) {
  int64_t status = kSuccess;
  while (made_.size() < count && status == kSuccess) {
    BackendDescriptor one = nullptr;
    status = backend_.create(static_cast<int32_t>(asked_.target_type), &one);
    if (status == kSuccess) made_.push_back(one);
  }
  return status;
}

bool GotDescriptors::answers(const wire::BackendQuestion& q) const {
  if (!wire::same_attribute(q, asked_)) return false;
  return q.requested == asked_.requested ||
         (status_ == kSuccess && count_ < asked_.requested && count_ < q.requested);
}

std::vector<BackendDescriptor> GotDescriptors::all() const {
  const auto filled = std::clamp<int64_t>(count_, 0, static_cast<int64_t>(made_.size()));
  return {made_.begin(), made_.begin() + filled};
}

std::vector<BackendDescriptor> GotDescriptors::take(size_t requested) {
  make(requested);
  const auto end = made_.begin() + static_cast<ptrdiff_t>(std::min(requested, made_.size()));
  std::vector<BackendDescriptor> taken(made_.begin(), end);
  made_.erase(made_.begin(), end);
  return taken;
}

bool keep_with(ObjectLife& owner, std::shared_ptr<GotDescriptors> got) {
  const size_t more = got->made_.size();
  if (g_kept.fetch_add(more) + more > kMostKept) return g_kept.fetch_sub(more), false;
  got->kept_ = more;
  std::lock_guard lock(owner.got_mutex);
  if (owner.got) return false;
  owner.got = std::move(got);
  return true;
}

std::shared_ptr<GotDescriptors> take_kept(ObjectLife& owner, const wire::BackendQuestion& q) {
  std::lock_guard lock(owner.got_mutex);
  if (!owner.got || !owner.got->answers(q)) return nullptr;
  return std::exchange(owner.got, nullptr);
}

}  // namespace sluice::worker
