// SPDX-License-Identifier: Apache-2.0
// cuDNN's backend functions on the worker, and what more than one file makes of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "wire/cudnn_backend.h"
#include "worker/dispatch.h"
#include "worker/library/library.h"

namespace sluice::worker {

using BackendDescriptor = void*;

struct Backend {
  int32_t (*create)(int32_t, BackendDescriptor*) = nullptr;
  int32_t (*destroy)(BackendDescriptor) = nullptr;
  int32_t (*finalize)(BackendDescriptor) = nullptr;
  int32_t (*set)(BackendDescriptor, int32_t, int32_t, int64_t, const void*) = nullptr;
  int32_t (*get)(BackendDescriptor, int32_t, int32_t, int64_t, int64_t*, void*) = nullptr;
  int32_t (*execute)(void*, BackendDescriptor, BackendDescriptor) = nullptr;
  bool whole = false;

  // Looked up at the first use; `whole` is false where the node has no cuDNN 9.
  static const Backend& get_all();
};

// BackendLook: answers what its client will ask of descriptors, all at once.
void look_at_backend(Session& s, const Command& c, Reply& reply);
// The questions of a command's body; false: the session is rejected.
bool take_questions(Session& s, std::span<const std::byte> raw,
                    std::vector<wire::BackendQuestion>* questions);
// Puts what they find at one descriptor into the reply.
void look_at(const LibraryObject& one, std::span<const wire::BackendQuestion> questions,
             Reply& reply);

}  // namespace sluice::worker
