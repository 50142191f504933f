// SPDX-License-Identifier: Apache-2.0
// What programs ask of cuDNN's descriptors, learned as they ask, so that all of it comes in one
// answer for the next descriptor of a kind (BackendLook): a framework asks some thirty things of
// the engines for each convolution, one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "client/library/object.h"
#include "wire/cudnn_backend.h"

namespace sluice::client::library {

// By the kind of descriptor (cudnnBackendDescriptorType_t). Not thread-safe: under State's mutex.
class LearnedQuestions {
 public:
  using Question = wire::BackendQuestion;

  // False: it is not learned, as it asks for too much or too many are asked already.
  bool asked(int32_t kind, const Question& question);
  bool expects(int32_t kind, const Question& question) const;
  // What will be asked of one of this kind, and of the descriptors that it gives.
  std::vector<Question> tree(int32_t kind) const;
  // The same of one question.
  std::vector<Question> tree_of(const Question& question) const;

 private:
  void add(int32_t kind, uint32_t parent, int depth, std::vector<Question>* tree) const;
  void add(Question question, uint32_t parent, int depth, std::vector<Question>* tree) const;

  std::map<int32_t, std::vector<Question>> of_kind_;
};

// The key of a question, by what is known of the descriptor that it is asked of.
Key question_key(const Key& descriptor, const wire::BackendQuestion& question);
// What a descriptor is known by that came with a question's answer, as its `index`th.
Key answered_key(const Key& question, uint64_t index);

// Of each question that cuDNN answered: i64 count, then the elements as it gave them.
using FoundAnswer = std::function<void(const Key& question, std::span<const std::byte> answer)>;

// Reads the answer to a BackendLook at descriptors that are known by `contents`, as far as it goes.
void read_look(std::span<const std::byte> reply, std::span<const wire::BackendQuestion> tree,
               std::span<const Key> contents, const FoundAnswer& found);

}  // namespace sluice::client::library
