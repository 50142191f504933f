// SPDX-License-Identifier: Apache-2.0
#include "wire/bodies/cudnn_ctc.h"

#include <cstring>
#include <vector>

#include "library/objects.h"
#include "worker/dispatch.h"
#include "worker/library/library.h"

namespace sluice::worker {

namespace {

namespace ids = sluice::library;

constexpr int64_t kNotSupported = 3000, kBadParam = 2000;

using Loss = int32_t (*)(void*, void*, const void*, const int*, const int*, const int*, void*,
                         void*, void*, int32_t, void*, void*, size_t);
using Size = int32_t (*)(void*, void*, void*, const int*, const int*, const int*, int32_t, void*,
                         size_t*);

using Describe = int32_t (*)(void*, int, int32_t*, int*, int*, int*);

// Timesteps, batch and alphabet of the descriptor on the node: how many lengths cuDNN reads.
bool sizes_of(void* descriptor, int (&sizes)[3]) {
  static const auto describe =
      reinterpret_cast<Describe>(Libraries::get().symbol("cudnn", "cudnnGetTensorNdDescriptor"));
  int32_t type = 0;
  int dimensions = 0, strides[3] = {};
  return describe && describe(descriptor, 3, &type, &dimensions, sizes, strides) == 0 &&
         dimensions == 3;
}

// What cuDNN may make of the texts: labels of the alphabet, inputs within the timesteps.
bool texts_are_good(const int32_t* labels, uint32_t count, const int32_t* inputs, uint32_t batch,
                    const int (&sizes)[3]) {
  for (uint32_t i = 0; i < count; ++i)
    if (labels[i] < 0 || labels[i] >= sizes[2]) return false;
  for (uint32_t i = 0; i < batch; ++i)
    if (inputs[i] < 0 || inputs[i] > sizes[0]) return false;
  return true;
}

bool object(uint64_t id, uint8_t type, LibraryObject* found) {
  return Libraries::get().objects.get(id, found) && found->type == type;
}

void ctc_loss(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& r = d.fixed<wire::CtcLoss>();
  if (!d.ok() || r.batch > wire::kMaxCtcBatch || r.labels > wire::kMaxCtcLabels)
    return s.reject("CtcLoss makes no sense");
  const auto raw = d.bytes((uint64_t{r.labels} + 2 * uint64_t{r.batch}) * sizeof(int32_t));
  if (!d.ok()) return s.reject("CtcLoss is cut short");
  LibraryObject handle, probs, gradients, loss;
  if (!object(r.handle, ids::k_cudnn, &handle) ||
      !object(r.probs_descriptor, ids::k_cudnn_tensor, &probs) ||
      !object(r.loss_descriptor, ids::k_cudnn_ctc_loss, &loss) ||
      (r.gradients_descriptor && !object(r.gradients_descriptor, ids::k_cudnn_tensor, &gradients)))
    return s.reject("CtcLoss names what the session does not have");
  for (const uint64_t address : {r.probs, r.costs, r.gradients, r.workspace})
    if (address != 0 && !s.device_range(address, 1))
      return s.reject("CtcLoss names memory that the session does not have");
  std::vector<int32_t> numbers(raw.size() / sizeof(int32_t) + 1);
  std::memcpy(numbers.data(), raw.data(), raw.size());
  const int32_t *labels = numbers.data(), *lengths = labels + r.labels, *inputs = lengths + r.batch;
  // cuDNN reads as many labels as the lengths say.
  uint64_t count = 0;
  for (uint32_t i = 0; i < r.batch; ++i) {
    if (lengths[i] < 0) return s.reject("CtcLoss has a negative length");
    count += static_cast<uint32_t>(lengths[i]);
  }
  if (count != r.labels) return s.reject("CtcLoss brings another number of labels than it says");
  Vgpu* v = s.use_context(c.header.context);
  if (!v) return;
  static const auto run = reinterpret_cast<Loss>(Libraries::get().symbol("cudnn", "cudnnCTCLoss"));
  static const auto size =
      reinterpret_cast<Size>(Libraries::get().symbol("cudnn", "cudnnGetCTCLossWorkspaceSize"));
  wire::CtcReply answer{kNotSupported, 0};
  int sizes[3] = {};
  if (run && size) {
    if (!sizes_of(probs.pointer, sizes)) {
      answer.status = kBadParam;
      return reply.put(answer);
    }
    // A client of ours has asked for it; cuDNN reads as many lengths as the descriptor says.
    if (sizes[1] < 0 || static_cast<uint32_t>(sizes[1]) != r.batch)
      return s.reject("CtcLoss brings another batch than its descriptor has");
    if (!texts_are_good(labels, r.labels, inputs, r.batch, sizes)) {
      answer.status = kBadParam;
      return reply.put(answer);
    }
  }
  const auto pointer = [](uint64_t address) { return reinterpret_cast<void*>(address); };
  const auto algorithm = static_cast<int32_t>(r.algorithm);
  if (r.only_size && run && size) {
    size_t bytes = 0;
    answer.status = size(handle.pointer, probs.pointer, gradients.pointer, labels, lengths, inputs,
                         algorithm, loss.pointer, &bytes);
    answer.workspace_bytes = bytes;
  } else if (!r.only_size && run && size) {
    Gate::Passage passage;
    if (!capturing(s, handle.stream)) passage = v->gate->pass(handle.stream, {c.header.function});
    answer.status = run(handle.pointer, probs.pointer, pointer(r.probs), labels, lengths, inputs,
                        pointer(r.costs), gradients.pointer, pointer(r.gradients), algorithm,
                        loss.pointer, pointer(r.workspace), r.workspace_bytes);
    passage.issued();
  }
  reply.put(answer);
}

}  // namespace

void add_cudnn_ctc_handlers(DispatchTable& t) { t[ids::id_sluiceCudnnCtcLoss].run = ctc_loss; }

}  // namespace sluice::worker
