// SPDX-License-Identifier: Apache-2.0
#include "client/library/cudnn_look.h"

#include <algorithm>
#include <cstring>

#include "library/objects.h"

namespace sluice::client::library {

namespace {

constexpr size_t kMostOfKind = 24;
constexpr size_t kMostOfTree = 128;
constexpr int kDeepest = 3;
constexpr int64_t kMostRequested = 256;
constexpr auto kNotLooked = static_cast<int64_t>(wire::kBackendNotLooked);
static_assert(kMostOfTree <= wire::kMaxBackendLooks);

bool same(const wire::BackendQuestion& a, const wire::BackendQuestion& b) {
  return wire::same_attribute(a, b) && a.requested == b.requested;
}

bool asks_for_descriptors(const wire::BackendQuestion& q) {
  return q.type == wire::kBackendDescriptor && q.requested > 0;
}

class Reader {
 public:
  Reader(std::span<const std::byte> reply, std::span<const wire::BackendQuestion> tree,
         const FoundAnswer& found)
      : left_(reply), tree_(tree), found_(found) {}

  // False: there is no more.
  bool descriptor(const Key& content, uint32_t parent) {
    for (uint32_t i = parent; i < tree_.size(); ++i)
      if (tree_[i].parent == parent && !answer(content, i)) return false;
    return true;
  }

 private:
  bool answer(const Key& content, uint32_t index) {
    const wire::BackendQuestion& q = tree_[index];
    int64_t status, count;
    if (left_.size() < 16) return false;
    std::memcpy(&status, left_.data(), 8);
    std::memcpy(&count, left_.data() + 8, 8);
    const auto begin = left_.subspan(8);
    left_ = left_.subspan(16);
    if (status == kNotLooked && count < 0) return false;
    if (status != 0) return true;  // asked one by one it will say so itself
    const Key key = question_key(content, q);
    const int64_t filled = std::clamp<int64_t>(count, 0, q.requested);
    if (asks_for_descriptors(q)) {
      found_(key, begin.first(8));
      for (int64_t i = 0; i < filled; ++i)
        if (!descriptor(answered_key(key, static_cast<uint64_t>(i)), index + 1)) return false;
      return true;
    }
    const size_t bytes = static_cast<size_t>(filled) * wire::backend_element_bytes(q.type);
    const size_t padded = wire::round_up(bytes, 8);
    if (left_.size() < padded) return false;
    found_(key, begin.first(8 + bytes));
    left_ = left_.subspan(padded);
    return true;
  }

  std::span<const std::byte> left_;
  std::span<const wire::BackendQuestion> tree_;
  const FoundAnswer& found_;
};

}  // namespace

bool LearnedQuestions::asked(int32_t kind, const Question& question) {
  if (expects(kind, question)) return true;
  auto& all = of_kind_[kind];
  if (question.requested > kMostRequested || all.size() == kMostOfKind) return false;
  all.push_back(question);
  return true;
}

bool LearnedQuestions::expects(int32_t kind, const Question& question) const {
  const auto found = of_kind_.find(kind);
  return found != of_kind_.end() &&
         std::any_of(found->second.begin(), found->second.end(),
                     [&](const Question& q) { return same(q, question); });
}

std::vector<wire::BackendQuestion> LearnedQuestions::tree(int32_t kind) const {
  std::vector<Question> all;
  add(kind, 0, 0, &all);
  return all;
}

std::vector<wire::BackendQuestion> LearnedQuestions::tree_of(const Question& question) const {
  std::vector<Question> all;
  add(question, 0, 0, &all);
  return all;
}

void LearnedQuestions::add(int32_t kind, uint32_t parent, int depth,
                           std::vector<Question>* tree) const {
  const auto found = of_kind_.find(kind);
  if (found == of_kind_.end()) return;
  for (const Question& q : found->second) add(q, parent, depth, tree);
}

void LearnedQuestions::add(Question question, uint32_t parent, int depth,
                           std::vector<Question>* tree) const {
  if (tree->size() == kMostOfTree) return;
  question.parent = parent;
  tree->push_back(question);
  if (asks_for_descriptors(question) && depth + 1 < kDeepest)
    add(static_cast<int32_t>(question.target_type), static_cast<uint32_t>(tree->size()), depth + 1,
        tree);
}

Key question_key(const Key& descriptor, const wire::BackendQuestion& question) {
  Key key = descriptor;
  key.add(sluice::library::id_sluiceCudnnBackendGet);
  key.add(uint64_t{question.name} << 32 | question.type);
  key.add(static_cast<uint64_t>(question.requested));
  if (asks_for_descriptors(question)) key.add(question.target_type);
  return key;
}

Key answered_key(const Key& question, uint64_t index) {
  Key key = question;
  key.add(index);
  return key;
}

void read_look(std::span<const std::byte> reply, std::span<const wire::BackendQuestion> tree,
               std::span<const Key> contents, const FoundAnswer& found) {
  Reader reader(reply, tree, found);
  for (const Key& content : contents)
    if (!reader.descriptor(content, 0)) return;
}

}  // namespace sluice::client::library
