// SPDX-License-Identifier: Apache-2.0
#include "worker/memory_moves.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "process/log.h"
#include "worker/memory.h"
#include "worker/steps.h"

namespace sluice::worker {

namespace {

// So much is mapped in one go, behind which its copy begins.
constexpr uint64_t kMostMadeAhead = 256ull << 20;

void log_move(const char* where, uint64_t bytes, const Steps& steps) {
  process::log_info(std::to_string(bytes >> 20) + " MiB are " + where + ": " + steps.text());
}

}  // namespace

MemoryMoves::~MemoryMoves() {
  session_.use(0);
  areas_.clear();
}

// With the access that each GPU of the session has to it now.
void MemoryMoves::add_place(Piece* piece, Vgpu& window, uint64_t address) {
  Place place{&window, address, {}};
  for (auto& v : session_.vgpus) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = v->gpu->ordinal;
    const auto same = [&](const CUmemAccessDesc& d) { return d.location.id == access.location.id; };
    if (std::ranges::any_of(place.access, same)) continue;
    unsigned long long flags = 0;
    if (call(session_.driver.cuMemGetAccess, &flags,
             static_cast<const CUmemLocation*>(&access.location), address) != CUDA_SUCCESS)
      continue;  // none was ever given
    access.flags = static_cast<CUmemAccess_flags>(flags);
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) place.access.push_back(access);
  }
  piece->places.push_back(std::move(place));
}

// A vGPU whose GPU reaches it by these; nullptr: none does.
Vgpu* MemoryMoves::reader_of(const std::vector<CUmemAccessDesc>& access) {
  for (auto& v : session_.vgpus)
    if (!access.empty() && v->gpu->ordinal == access[0].location.id) return v.get();
  return nullptr;
}

void MemoryMoves::look() {
  pieces_.clear();
  movable_.assign(session_.vgpus.size(), 0);
  staying_.assign(session_.vgpus.size(), 0);
  exported_.assign(session_.vgpus.size(), 0);
  std::map<uint64_t, size_t> known;  // allocations, by id
  for (auto& v : session_.vgpus) {
    session_.use(v->index);
    std::lock_guard lock(v->mutex);
    for (const auto& [address, mapping] : v->mappings) {
      AllocationObject o;
      const uint64_t id = mapping.allocation;
      if (id && (!session_.objects.allocations.get(id, &o) || o.shared)) continue;
      Vgpu& owner = id ? *session_.vgpus[o.device] : *v;
      if (mapping.shared || owner.exported.contains(id ? id : address)) continue;
      const auto before = id ? known.find(id) : known.end();
      if (before != known.end()) {
        add_place(&pieces_[before->second], *v, address);
        continue;
      }
      Piece piece{&owner,         nullptr, id, mapping.bytes, physical_memory_on(*owner.gpu),
                  mapping.handle, {}};
      if (id)
        piece.prop.allocFlags.compressionType =
            static_cast<unsigned char>(compression_of(session_, mapping.handle));
      add_place(&piece, *v, address);
      piece.reader = reader_of(piece.places[0].access);
      if (!piece.reader) continue;
      if (id) known[id] = pieces_.size();
      movable_[owner.index] += piece.bytes;
      pieces_.push_back(std::move(piece));
    }
    for (const auto& [address, laid] : v->laid) {
      Piece piece{v.get(), v.get(), 0, laid.bytes, physical_memory_on(*v->gpu), laid.handle, {}};
      piece.laid = true;
      add_place(&piece, *v, address);
      if (piece.places[0].access.empty()) continue;
      movable_[v->index] += piece.bytes;
      pieces_.push_back(std::move(piece));
    }
  }
  for (auto& v : session_.vgpus) {
    std::lock_guard lock(v->mutex);
    staying_[v->index] = v->memory.taken(MemoryUse::kClient) +
                         v->memory.taken(MemoryUse::kLibrary) + v->memory.taken(MemoryUse::kCode);
    for (const auto& [name, key] : v->exported) {
      AllocationObject o;
      const auto slab = v->mappings.find(name);
      if (slab != v->mappings.end() && !slab->second.allocation)
        exported_[v->index] += slab->second.bytes;
      else if (session_.objects.allocations.get(name, &o))
        exported_[v->index] += o.bytes;
    }
  }
  for (const Piece& piece : pieces_)
    staying_[piece.owner->index] -= std::min(piece.bytes, staying_[piece.owner->index]);
}

uint64_t MemoryMoves::movable() const {
  return std::accumulate(movable_.begin(), movable_.end(), uint64_t{0});
}

uint64_t MemoryMoves::out(uint32_t vgpu) const {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces_)
    if (piece.handle == 0 && piece.owner->index == vgpu) bytes += piece.bytes;
  return bytes;
}

// Of a vGPU the largest pieces that are not too much, and one more if these are not enough: the
// smallest.
void MemoryMoves::plan(uint32_t vgpu, uint64_t bytes) {
  Pieces here;
  for (Piece& piece : pieces_)
    if (piece.handle != 0 && piece.owner->index == vgpu) here.push_back(&piece);
  std::ranges::stable_sort(here, std::greater{}, [](const Piece* piece) { return piece->bytes; });
  uint64_t missing = bytes - std::min(bytes, out(vgpu));
  Piece* rest = nullptr;
  for (Piece* piece : here) {
    piece->planned = missing > 0 && piece->bytes <= missing;
    if (piece->planned)
      missing -= piece->bytes;
    else
      rest = piece;
  }
  if (missing > 0 && rest) rest->planned = true;
}

uint64_t MemoryMoves::plan(const std::vector<uint64_t>& out) {
  for (Piece& piece : pieces_) piece.planned = out.empty() && piece.handle != 0;
  for (uint32_t vgpu = 0; vgpu < std::min(out.size(), movable_.size()); ++vgpu)
    plan(vgpu, out[vgpu]);
  uint64_t bytes = 0;
  for (const Piece* piece : chosen(true)) bytes += piece->bytes;
  return bytes;
}

// What is planned to go, or what is out.
MemoryMoves::Pieces MemoryMoves::chosen(bool planned) {
  Pieces found;
  for (Piece& piece : pieces_)
    if (planned ? piece.planned : piece.handle == 0) found.push_back(&piece);
  return found;
}

uint64_t MemoryMoves::fresh() { return lay_out(chosen(true)); }

uint64_t MemoryMoves::held() const {
  uint64_t bytes = 0;
  for (const auto& area : areas_) bytes += area->bytes();
  return bytes;
}

uint64_t MemoryMoves::kept() const {
  uint64_t bytes = held();
  for (const Piece& piece : pieces_)
    if (piece.handle == 0) bytes -= piece.bytes;
  return bytes;
}

// Where something that is out lies in an area, in order.
std::vector<HostArea::Run> MemoryMoves::used(const HostArea& area) const {
  std::vector<HostArea::Run> found;
  for (const Piece& piece : pieces_)
    if (piece.handle == 0 && piece.area == &area)
      found.push_back({piece.host, piece.host + piece.bytes});
  std::ranges::sort(found, {}, &HostArea::Run::begin);
  return found;
}

std::vector<MemoryMoves::Gap> MemoryMoves::gaps() const {
  std::vector<Gap> found;
  for (const auto& area : areas_) {
    const std::vector<HostArea::Run> taken = used(*area);
    auto next = taken.begin();
    for (const HostArea::Run& run : area->runs()) {
      uint64_t at = run.begin;
      for (; next != taken.end() && next->begin < run.end; at = (next++)->end)
        if (at < next->begin) found.push_back({area.get(), at, next->begin});
      if (at < run.end) found.push_back({area.get(), at, run.end});
    }
  }
  return found;
}

// Where each is to go: into the first gap of what is kept that it fits in, so that neighbours stay
// neighbours, else side by side into new memory (area: nullptr). Returns how much that has to be.
uint64_t MemoryMoves::lay_out(const Pieces& going) {
  std::vector<Gap> all = gaps();
  uint64_t fresh = 0;
  for (Piece* piece : going) {
    const auto fits = [&](const Gap& gap) { return gap.end - gap.begin >= piece->bytes; };
    const auto gap = std::ranges::find_if(all, fits);
    if (gap == all.end()) {
      piece->area = nullptr;
      piece->host = fresh;
      fresh += piece->bytes;
      continue;
    }
    piece->area = gap->area;
    piece->host = gap->begin;
    gap->begin += piece->bytes;
    if (gap->begin == gap->end) all.erase(gap);
  }
  return fresh;
}

// What lies side by side, here and there, in as few copies as the host memory allows.
CUresult MemoryMoves::copy_run(const Piece& first, uint64_t bytes, bool out) {
  session_.use(first.reader->index);
  const CUstream stream = first.reader->gpu->house;
  CUdeviceptr device = first.places[0].address;
  for (uint64_t at = first.host, end = at + bytes; at < end;) {
    const uint64_t n = first.area->in_one(at, end);
    CUresult e = first.area->enlist(at);
    if (e != CUDA_SUCCESS) return e;
    std::byte* const host = first.area->at(at);
    e = out ? session_.driver.cuMemcpyDtoHAsync_v2(host, device, n, stream)
            : session_.driver.cuMemcpyHtoDAsync_v2(device, host, n, stream);
    if (e != CUDA_SUCCESS) return e;
    at += n;
    device += n;
  }
  return CUDA_SUCCESS;
}

// What comes in is made as it is about to be copied, while what was made before is: `failed` says
// which finds no place.
CUresult MemoryMoves::copy(const Pieces& pieces, bool out, const Piece** failed) {
  CUresult first = CUDA_SUCCESS;
  for (size_t i = 0; i < pieces.size() && first == CUDA_SUCCESS;) {
    const Piece& piece = *pieces[i];
    uint64_t bytes = 0;
    for (; i < pieces.size() && (bytes == 0 || !(piece.laid || pieces[i]->laid)) &&
           pieces[i]->reader == piece.reader && pieces[i]->area == piece.area &&
           pieces[i]->places[0].address == piece.places[0].address + bytes &&
           pieces[i]->host == piece.host + bytes && (out || bytes < kMostMadeAhead);
         ++i) {
      if (!out && (first = create(pieces[i])) != CUDA_SUCCESS) {
        *failed = pieces[i];
        break;
      }
      bytes += pieces[i]->bytes;
    }
    if (first == CUDA_SUCCESS) first = copy_run(piece, bytes, out);
  }
  for (auto& v : session_.vgpus) {
    session_.use(v->index);
    const CUresult e = session_.driver.cuStreamSynchronize(v->gpu->house);
    if (first == CUDA_SUCCESS) first = e;
  }
  return first;
}

// What lies side by side is unmapped in one call: a window is one reservation.
CUresult MemoryMoves::release(const Pieces& pieces) {
  CUresult first = CUDA_SUCCESS;
  const auto note = [&](CUresult e) {
    if (first == CUDA_SUCCESS) first = e;
  };
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> mapped;  // bytes, by window and address
  for (const Piece* piece : pieces) {
    if (piece->laid) {
      session_.use(piece->owner->index);
      note(session_.driver.cuMemUnmap(piece->places[0].address, piece->bytes));
      continue;
    }
    for (const Place& place : piece->places)
      mapped[{place.window->index, place.address}] = piece->bytes;
  }
  for (auto at = mapped.begin(); at != mapped.end();) {
    const auto [window, address] = at->first;
    uint64_t bytes = 0;
    for (; at != mapped.end() && at->first == std::pair{window, address + bytes}; ++at)
      bytes += at->second;
    session_.use(window);
    note(session_.driver.cuMemUnmap(address, bytes));
  }
  for (Piece* piece : pieces) note(session_.driver.cuMemRelease(std::exchange(piece->handle, 0)));
  return first;
}

CUresult MemoryMoves::create(Piece* piece) {
  session_.use(piece->owner->index);
  CUresult e = session_.driver.cuMemCreate(&piece->handle, piece->bytes, &piece->prop, 0);
  if (e != CUDA_SUCCESS) return piece->handle = 0, e;
  size_t mapped = 0;
  for (const Place& place : piece->places) {
    session_.use(place.window->index);
    e = session_.driver.cuMemMap(place.address, piece->bytes, 0, piece->handle, 0);
    if (e != CUDA_SUCCESS) break;
    ++mapped;
  }
  if (e == CUDA_SUCCESS) {
    // To be written to, whatever its client may.
    CUmemAccessDesc writes = piece->places[0].access[0];
    writes.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    e = session_.driver.cuMemSetAccess(piece->places[0].address, piece->bytes, &writes, 1);
  }
  if (e == CUDA_SUCCESS) return e;
  for (size_t i = 0; i < mapped; ++i)
    session_.driver.cuMemUnmap(piece->places[i].address, piece->bytes);
  session_.driver.cuMemRelease(piece->handle);
  piece->handle = 0;
  return e;
}

CUresult MemoryMoves::give_access(const Piece& piece) {
  CUresult first = CUDA_SUCCESS;
  for (const Place& place : piece.places) {
    if (place.access.empty()) continue;
    session_.use(place.window->index);
    const CUresult e = session_.driver.cuMemSetAccess(place.address, piece.bytes,
                                                      place.access.data(), place.access.size());
    if (first == CUDA_SUCCESS) first = e;
  }
  return first;
}

// The session's records name the memory that is there now.
void MemoryMoves::know_again(const Piece& piece) {
  for (const Place& place : piece.places) {
    std::lock_guard lock(place.window->mutex);
    if (piece.laid)
      place.window->laid.at(place.address).handle = piece.handle;
    else
      place.window->mappings.at(place.address).handle = piece.handle;
  }
  AllocationObject o;
  if (piece.allocation && session_.objects.allocations.get(piece.allocation, &o)) {
    o.handle = piece.handle;
    session_.objects.allocations.set(piece.allocation, o);
  }
}

bool MemoryMoves::out(const std::vector<HostArea::Piece>& host, std::string* error, bool* broken) {
  *broken = false;
  steps_.clear();
  const Pieces going = chosen(true);
  uint64_t bytes = 0;
  for (const Piece* piece : going) bytes += piece->bytes;
  session_.use(0);
  Steps steps;
  std::vector<int> devices;
  for (const auto& v : session_.vgpus) devices.push_back(v->gpu->ordinal);
  auto area = HostArea::take(session_.driver, host, lay_out(going), devices, &steps, error);
  if (!area) return false;
  for (Piece* piece : going)
    if (!piece->area) piece->area = area.get();
  const Piece* failed = nullptr;
  if (const CUresult e = copy(going, true, &failed); e != CUDA_SUCCESS) {
    *error = "its memory cannot be copied to the host: " + session_.driver.error_text(e);
    *broken = is_sticky(e);
    session_.use(0);
    area.reset();
    return false;
  }
  steps.done("copied, and what was copied to made known");
  if (const uint64_t unknown = area->unknown_bytes())
    process::log_info("the driver registers " + std::to_string(unknown >> 20) +
                      " MiB of host memory not: copies to it are slower");
  if (area->bytes()) areas_.push_back(std::move(area));
  for (Piece* piece : going) piece->planned = false;
  if (const CUresult e = release(going); e != CUDA_SUCCESS) {
    *error = "its memory cannot be taken off the GPU: " + session_.driver.error_text(e);
    *broken = true;
    return false;
  }
  steps.done("unmapped");
  steps_ = steps.text();
  log_move("on the host", bytes, steps);
  return true;
}

// With nothing of what was to come in there. What is free may be in pieces that are too small.
MemoryMoves::Missing MemoryMoves::missing_for(const Piece& failed, const Pieces& coming) {
  const Gpu* const gpu = failed.owner->gpu;
  uint64_t needed = 0;
  for (const Piece* piece : coming)
    if (piece->owner->gpu == gpu) needed += piece->bytes;
  session_.use(failed.owner->index);
  size_t free = 0, total = 0;
  if (call(session_.driver.cuMemGetInfo_v2, &free, &total) != CUDA_SUCCESS) free = 0;
  return {failed.owner->index, std::max(needed - std::min<uint64_t>(needed, free), kGranularity)};
}

bool MemoryMoves::back(std::string* error, bool* broken, Missing* missing) {
  *broken = false;
  Steps steps;
  uint64_t bytes = 0;
  steps_.clear();
  const Pieces coming = chosen(false);
  for (const Piece* piece : coming) bytes += piece->bytes;
  const Piece* failed = nullptr;
  CUresult e = copy(coming, false, &failed);
  steps.done("mapped and copied");
  for (const Piece* piece : coming)
    if (e == CUDA_SUCCESS) e = give_access(*piece);
  if (e != CUDA_SUCCESS) {
    *error = "its memory finds no place on the GPU: " + session_.driver.error_text(e);
    *broken = is_sticky(e);
    Pieces made;
    for (Piece* piece : coming)
      if (piece->handle) made.push_back(piece);
    release(made);
    if (failed && e == CUDA_ERROR_OUT_OF_MEMORY) {
      *missing = missing_for(*failed, coming);
      *error += " (" + std::to_string(missing->bytes >> 20) + " MiB of vGPU " +
                std::to_string(missing->vgpu) + " are missing there)";
    }
    return false;
  }
  came_back_from_.clear();
  for (const Piece* piece : coming) {
    know_again(*piece);
    came_back_from_.insert(piece->area);
  }
  steps.done("access");
  steps_ = steps.text();
  pieces_.clear();
  log_move("on the GPU", bytes, steps);
  return true;
}

void MemoryMoves::delist_host() {
  give_up_host();
  for (const auto& area : areas_) area->delist();
}

void MemoryMoves::keep_host() {
  session_.use(0);
  uint64_t most = 0, have = 0;
  for (const auto& v : session_.vgpus) most += v->memory.bytes();
  for (size_t i = areas_.size(); i-- > 0;) {
    const bool was_used = came_back_from_.empty() || came_back_from_.contains(areas_[i].get());
    if (was_used && have + areas_[i]->bytes() <= most)
      have += areas_[i]->bytes();
    else
      areas_.erase(areas_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void MemoryMoves::give_up_host(uint64_t bytes) {
  session_.use(0);
  for (const auto& area : areas_) bytes -= std::min(bytes, area->give_up(used(*area), bytes));
  std::erase_if(areas_, [](const auto& area) { return area->bytes() == 0; });
}

}  // namespace sluice::worker
