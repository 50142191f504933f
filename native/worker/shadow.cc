// SPDX-License-Identifier: Apache-2.0
// Shadows: host memory here that stands for the program's in copies of graphs, where worker and
// program share none. The client writes and reads them while the graph waits for it to.
#include <cstring>

#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

void make(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::ShadowMake>();
  if (!d.ok()) return s.reject("ShadowMake is cut short");
  const auto known = s.shadows.find(m.id);
  if (m.bytes == 0) {
    if (!known) return s.reject("ShadowMake ends a shadow that there is not");
    if (s.use_context(c.header.context)) s.shadows.drop(m.id);
    return;
  }
  if (known || m.id == 0 || !s.shadows.room(m.bytes))
    return s.reject("ShadowMake mints no shadow that can be");
  if (!s.use_context(c.header.context)) return;
  if (!s.driver.cuMemHostAlloc || !s.driver.cuMemFreeHost) {
    reply.status = CUDA_ERROR_NOT_SUPPORTED;
    return;
  }
  void* at = nullptr;
  reply.status = s.driver.cuMemHostAlloc(&at, m.bytes, CU_MEMHOSTALLOC_PORTABLE);
  if (reply.status != CUDA_SUCCESS) return;
  std::memset(at, 0, m.bytes);  // another session's, perhaps
  auto shadow = std::make_shared<Shadows::Memory>();
  shadow->at = static_cast<std::byte*>(at);
  shadow->bytes = m.bytes;
  shadow->release = [free = s.driver.cuMemFreeHost, at] { free(at); };
  s.shadows.add(m.id, std::move(shadow));
}

// The shadow whose piece a command names; nullptr: rejected.
Shadows::Shadow find(Session& s, const wire::ShadowAccess& a) {
  Shadows::Shadow shadow = s.shadows.find(a.id);
  if (shadow && a.offset <= shadow->bytes && a.bytes <= shadow->bytes - a.offset) return shadow;
  s.reject("a command names a shadow, or a part of one, that there is not");
  return nullptr;
}

void write(Session& s, const Command& c, Reply&) {
  Decoder d(c.body);
  const auto a = d.fixed<wire::ShadowAccess>();
  const auto data = d.bytes(a.bytes);
  if (!d.ok()) return s.reject("ShadowWrite is cut short");
  if (const auto shadow = find(s, a)) std::memcpy(shadow->at + a.offset, data.data(), data.size());
}

void read(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto a = d.fixed<wire::ShadowAccess>();
  if (!d.ok() || a.bytes > s.endpoint().reply_limit()) return s.reject("ShadowRead makes no sense");
  const auto shadow = find(s, a);
  if (shadow) reply.put_bytes(shadow->at + a.offset, a.bytes);
}

}  // namespace

Shadows::Shadow Shadows::find(uint64_t id) const {
  std::lock_guard lock(mutex_);
  const auto it = all_.find(id);
  return it == all_.end() ? nullptr : it->second;
}

uint64_t Shadows::holder(const void* at) const {
  std::lock_guard lock(mutex_);
  for (const auto& [id, shadow] : all_)
    if (static_cast<uint64_t>(static_cast<const std::byte*>(at) - shadow->at) < shadow->bytes)
      return id;
  return 0;
}

bool Shadows::room(uint64_t bytes) const {
  std::lock_guard lock(mutex_);
  return bytes <= wire::kMaxShadowBytes - held_;
}

void Shadows::add(uint64_t id, Shadow shadow) {
  std::lock_guard lock(mutex_);
  held_ += shadow->bytes;
  all_[id] = std::move(shadow);
}

// What it holds goes outside of the lock, with whoever has it still.
void Shadows::drop(uint64_t id) {
  Shadow gone;
  std::lock_guard lock(mutex_);
  const auto it = all_.find(id);
  if (it == all_.end()) return;
  held_ -= it->second->bytes;
  gone = std::move(it->second);
  all_.erase(it);
}

void add_shadow_handlers(DispatchTable& t) {
  t[wire::kShadowMake].run = make;
  t[wire::kShadowWrite].run = write;
  t[wire::kShadowRead].run = read;
}

}  // namespace sluice::worker
