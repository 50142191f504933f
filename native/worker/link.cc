// SPDX-License-Identifier: Apache-2.0
// cuLink* on the node: several pieces of PTX, cubins and libraries become one image. The driver is
// asked on the session's one thread for it (compiler.h).
#include <algorithm>
#include <cstring>
#include <utility>

#include "image_format.h"
#include "process/log.h"
#include "worker/dispatch.h"
#include "worker/image/image.h"
#include "worker/jit.h"

namespace sluice::worker {

struct LinkState {
  explicit LinkState(Session& of) : s(of) {}
  ~LinkState() {
    // The driver may write to the logs until then.
    if (state)
      s.compiler.post([&driver = s.driver, state = state, options = options] {
        call(driver.cuLinkDestroy, state);
      });
  }
  // Runs a step there, the first behind the link's beginning; the step's status.
  template <class F>
  CUresult step(F&& ask) {
    return on_compiler(s, device, [&] {
      if (!std::exchange(has_begun, true))
        begun = call(s.driver.cuLinkCreate_v2, options->count(), options->options.data(),
                     options->values.data(), &state);
      return begun == CUDA_SUCCESS ? ask() : begun;
    });
  }

  Session& s;
  std::mutex mutex;  // one step at a time, and none while the image is read
  std::shared_ptr<JitOptions> options = std::make_shared<JitOptions>();
  bool has_begun = false;
  CUlinkState state = nullptr;
  CUresult begun = CUDA_SUCCESS;
  uint32_t device = 0;
  std::span<const std::byte> image;  // the driver's, until the state is destroyed
};

namespace {

constexpr uint64_t kMaxImage = 2ull << 30;

// nullptr after a rejection.
std::shared_ptr<LinkState> find(Session& s, uint64_t id) {
  std::shared_ptr<LinkState> link;
  if (!s.objects.links.get(id, &link))
    s.reject("a command names a link that the session does not have");
  return link;
}

// Whether the driver, which reads these by the sizes that stand in them, would read beyond the end.
bool claims_too_much(std::span<const std::byte> input) {
  uint32_t magic = 0;
  if (input.size() >= sizeof magic) std::memcpy(&magic, input.data(), sizeof magic);
  return (magic == fat_binary::kElfMagic || magic == fat_binary::kContainerMagic) &&
         examine_image(input).verdict == ImageVerdict::kBroken;
}

void begin(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& l = d.fixed<wire::LinkBegin>();
  if (!d.ok() || l.option_count > kMaxJitOptions) return s.reject("LinkBegin makes no sense");
  const auto pairs = d.bytes(size_t{l.option_count} * 8);
  if (!d.ok()) return s.reject("LinkBegin is cut short");
  if (!s.objects.links.has_room(l.id)) return s.reject("LinkBegin mints no id that is free");
  if (!s.use_context(c.header.context)) return;
  auto link = std::make_shared<LinkState>(s);
  link->device = c.header.context - 1;
  link->options->add_numbers(pairs);
  link->options->add_logs();
  if (!s.objects.links.add(l.id, link)) return s.reject("LinkBegin mints one id twice");
  reply.status = CUDA_SUCCESS;
}

void add(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& a = d.fixed<wire::LinkAdd>();
  if (!d.ok() || a.option_count > kMaxJitOptions || a.name_bytes > wire::kMaxNameBytes ||
      a.type >= CU_JIT_NUM_INPUT_TYPES)
    return s.reject("LinkAdd makes no sense");
  const auto pairs = d.bytes(size_t{a.option_count} * 8);
  const auto name = d.bytes(a.name_bytes);
  if (!d.ok()) return s.reject("LinkAdd is cut short");
  const auto link = find(s, a.id);
  std::vector<std::byte> input;
  if (!link || !take_blob(s, a.blob, &input, reply)) return;
  const size_t bytes = input.size();
  // Nothing of it is loaded here: what a link makes is charged when it comes back as an image.
  if (claims_too_much(input)) {
    process::log_info("an input of " + std::to_string(bytes) +
                      " bytes was not linked: it claims to be longer than what has come");
    reply.status = CUDA_ERROR_INVALID_IMAGE;
    return link->options->put_logs(reply);
  }
  input.push_back(std::byte{0});  // PTX text has to end
  const std::string named(reinterpret_cast<const char*>(name.data()), name.size());
  JitOptions own;
  own.add_numbers(pairs);
  std::lock_guard lock(link->mutex);
  reply.status = link->step([&] {
    return call(s.driver.cuLinkAddData_v2, link->state, static_cast<CUjitInputType>(a.type),
                static_cast<void*>(input.data()), a.type == CU_JIT_INPUT_PTX ? input.size() : bytes,
                name.empty() ? nullptr : named.c_str(), own.count(), own.options.data(),
                own.values.data());
  });
  link->options->put_logs(reply);
}

void complete(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& l = d.fixed<wire::LinkId>();
  if (!d.ok()) return s.reject("LinkComplete is cut short");
  const auto link = find(s, l.id);
  if (!link) return;
  std::lock_guard lock(link->mutex);
  void* image = nullptr;
  size_t bytes = 0;
  reply.status =
      link->step([&] { return call(s.driver.cuLinkComplete, link->state, &image, &bytes); });
  if (reply.status == CUDA_SUCCESS && bytes > kMaxImage) reply.status = CUDA_ERROR_OUT_OF_MEMORY;
  if (reply.status == CUDA_SUCCESS) link->image = {static_cast<std::byte*>(image), bytes};
  reply.put(uint64_t{link->image.size()});
  link->options->put_logs(reply);
}

void read(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& r = d.fixed<wire::LinkRead>();
  if (!d.ok()) return s.reject("LinkRead is cut short");
  const auto link = find(s, r.id);
  if (!link) return;
  std::lock_guard lock(link->mutex);
  if (r.bytes > wire::kLinkPiece || r.offset > link->image.size() ||
      r.bytes > link->image.size() - r.offset)
    return s.reject("LinkRead goes beyond the image");
  reply.put_bytes(link->image.data() + r.offset, r.bytes);
}

void end(Session& s, const Command& c, Reply&) {
  Decoder d(c.body);
  const auto& l = d.fixed<wire::LinkId>();
  if (!d.ok()) return s.reject("LinkEnd is cut short");
  const auto link = find(s, l.id);
  std::shared_ptr<LinkState> last;
  if (link) s.objects.links.take(l.id, &last);
}

}  // namespace

void add_link_handlers(DispatchTable& t) {
  t[wire::kLinkBegin].run = begin;
  t[wire::kLinkAdd].run = add;
  t[wire::kLinkComplete].run = complete;
  t[wire::kLinkRead].run = read;
  t[wire::kLinkEnd].run = end;
}

}  // namespace sluice::worker
