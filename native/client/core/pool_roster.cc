// SPDX-License-Identifier: Apache-2.0
#include "client/core/pool_roster.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "client/core/memory_pool.h"
#include "client/core/memory_pools.h"

namespace sluice::client {

namespace {

constexpr uint64_t kPlacesBegin = 4096;  // behind the badge's page
constexpr uint64_t kFileBytes = kPlacesBegin + sizeof(PointerTicket) * PoolRoster::kPlaces;

off_t offset_of(uint32_t place) {
  return static_cast<off_t>(kPlacesBegin + sizeof(PointerTicket) * place);
}

}  // namespace

// ---- the exporter's

std::unique_ptr<PoolRoster> PoolRoster::create(const wire::DeviceRecord& device) {
  PoolBadge badge;
  if (getrandom(&badge.pool, sizeof badge.pool, 0) != sizeof badge.pool) return nullptr;
  std::memcpy(badge.uuid, device.uuid, sizeof badge.uuid);
  std::memcpy(badge.physical_uuid, device.physical_uuid, sizeof badge.physical_uuid);
  const int file = memfd_create("sluice-memory-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return nullptr;
  std::unique_ptr<PoolRoster> made(new PoolRoster(file, badge.pool));
  // Only pages with a place in use take memory. Nobody can make the file another size.
  if (ftruncate(file, kFileBytes) != 0 || pwrite(file, &badge, sizeof badge, 0) != sizeof badge ||
      fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return nullptr;
  return made;
}

PoolRoster::~PoolRoster() {
  strike_all();
  ::close(file_);
}

int PoolRoster::descriptor() const { return fcntl(file_, F_DUPFD_CLOEXEC, 0); }

bool PoolRoster::write(uint32_t place, const PointerTicket& ticket) {
  return pwrite(file_, &ticket, sizeof ticket, offset_of(place)) == sizeof ticket;
}

bool PoolRoster::enter(uint64_t address, PointerTicket* ticket) {
  if (const auto known = entries_.find(address); known != entries_.end()) {
    *ticket = known->second;
    return true;
  }
  if (left_.empty() && used_places_ == kPlaces) return false;
  ticket->place = left_.empty() ? used_places_ : left_.back();
  ticket->serial = ++serials_;
  ticket->pool = pool_;
  if (!write(ticket->place, *ticket)) return false;
  if (left_.empty())
    ++used_places_;
  else
    left_.pop_back();
  entries_.emplace(address, *ticket);
  return true;
}

void PoolRoster::strike(uint64_t address) {
  const auto it = entries_.find(address);
  if (it == entries_.end()) return;
  const uint32_t place = it->second.place;
  PointerTicket nothing;
  nothing.magic = 0;
  write(place, nothing);
  left_.push_back(place);
  entries_.erase(it);
}

void PoolRoster::strike_all() {
  while (!entries_.empty()) strike(entries_.begin()->first);
}

// ---- what pools tell by it

CUresult MemoryPools::export_pool(const MemoryPool* pool, int* descriptor) {
  if (!pool->roster_) return CUDA_ERROR_INVALID_VALUE;
  *descriptor = pool->roster_->descriptor();
  return *descriptor < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult MemoryPools::export_pointer(uint64_t address, const Share& share, PointerTicket* ticket) {
  std::lock_guard lock(mutex_);
  MemoryPool* pool = owner_of(address);
  if (!pool || !pool->roster_) return CUDA_ERROR_INVALID_VALUE;
  const auto [chunk, chunk_bytes] = *std::prev(pool->chunks_.upper_bound(address));
  auto key = pool->roster_->keys.find(chunk);
  if (key == pool->roster_->keys.end()) {
    wire::SharedMemory shared{};
    if (const CUresult e = share(chunk, &shared); e != CUDA_SUCCESS) return e;
    if (shared.start != chunk || shared.bytes != chunk_bytes) return CUDA_ERROR_UNKNOWN;
    key = pool->roster_->keys.emplace(chunk, shared.key).first;
  }
  ticket->key = key->second;
  ticket->mapped_bytes = chunk_bytes;
  ticket->offset = address - chunk;
  ticket->bytes = pool->used_.at(address);
  return pool->roster_->enter(address, ticket) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// ---- the importer's

std::unique_ptr<RosterView> RosterView::open(int descriptor) {
  struct stat s;
  PoolBadge badge;
  if (fstat(descriptor, &s) != 0 || !S_ISREG(s.st_mode) ||
      static_cast<uint64_t>(s.st_size) != kFileBytes ||
      pread(descriptor, &badge, sizeof badge, 0) != sizeof badge ||
      badge.magic != PoolBadge::kMagic)
    return nullptr;
  const int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return nullptr;
  return std::unique_ptr<RosterView>(new RosterView(own, s.st_dev, s.st_ino, badge));
}

RosterView::~RosterView() { ::close(file_); }

bool RosterView::lists(const PointerTicket& ticket) const {
  PointerTicket there;
  return ticket.magic == PointerTicket::kMagic && ticket.pool == badge_.pool &&
         ticket.place < PoolRoster::kPlaces &&
         pread(file_, &there, sizeof there, offset_of(ticket.place)) == sizeof there &&
         there == ticket;
}

}  // namespace sluice::client
