// SPDX-License-Identifier: Apache-2.0
#include "client/driver/lent_memory.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "client/core/addresses.h"
#include "client/core/device_memory.h"
#include "client/core/log.h"
#include "client/core/memory_pools.h"
#include "client/core/session.h"
#include "client/driver/transfer.h"
#include "client/driver/wait.h"
#include "client/objects/device.h"
#include "client/objects/stream.h"

namespace sluice::client {

namespace {

constexpr size_t kWord = sizeof(uint64_t);

uint64_t word_at(std::span<const std::byte> params, size_t at) {
  uint64_t word;
  std::memcpy(&word, params.data() + at, kWord);
  return word;
}

bool is_unreachable(Session* s, uint64_t address) {
  return s->host_memory().may_be_unmapped(address) && !is_device_address(s, address) &&
         s->host_memory().is_unmapped(address, 1);
}

}  // namespace

bool names_unreachable(Session* s, std::span<const std::byte> params) {
  for (size_t at = 0; at + kWord <= params.size(); at += kWord)
    if (is_unreachable(s, word_at(params, at))) return true;
  return false;
}

LentMemory::~LentMemory() {
  for (const Loan& loan : loans_) stream_->device->pools.free(loan.copy, stream_);
}

CUresult LentMemory::loan_of(uint64_t address, const Loan** loan) {
  *loan = nullptr;
  const HostMemory::Range range = s_->host_memory().find(reinterpret_cast<const void*>(address));
  if (range.bytes == 0) return CUDA_SUCCESS;  // another thread freed it just now
  for (const Loan& l : loans_)
    if (l.start == range.start) return *loan = &l, CUDA_SUCCESS;
  if (range.bytes > kMost) {
    log_once(LogLevel::kError,
             "a kernel's argument is pinned memory of " + std::to_string(range.bytes >> 10) +
                 " KiB, which kernels do not reach over this channel: copies are made for it up "
                 "to " +
                 std::to_string(kMost >> 10) + " KiB (docs/native.md, pinned memory)");
    return CUDA_SUCCESS;
  }
  Loan made;
  made.start = range.start;
  const auto* from = reinterpret_cast<const std::byte*>(range.start);
  MemoryPools& pools = stream_->device->pools;
  if (const CUresult e = s_->outcome(
          pools.allocate(pools.standard(), stream_, range.bytes, &made.copy), *stream_->device);
      e != CUDA_SUCCESS)
    return e;
  // As it is when the stream gets there: what the stream brings to it first is awaited.
  const CUresult waited = synchronize_stream(s_, stream_);
  made.sent.assign(from, from + range.bytes);
  loans_.push_back(std::move(made));
  if (waited != CUDA_SUCCESS) return waited;
  *loan = &loans_.back();
  return copy_to_device(s_, stream_, {loans_.back().copy, range.bytes}, loans_.back().sent.data(),
                        range.bytes, {range.bytes}, false);
}

CUresult LentMemory::lend(std::span<std::byte> params) {
  for (size_t at = 0; at + kWord <= params.size(); at += kWord) {
    const uint64_t word = word_at(params, at);
    if (!is_unreachable(s_, word)) continue;
    const Loan* loan;
    if (const CUresult e = loan_of(word, &loan); e != CUDA_SUCCESS) return e;
    if (!loan) continue;
    const uint64_t lent = loan->copy + (word - loan->start);
    std::memcpy(params.data() + at, &lent, kWord);
  }
  return CUDA_SUCCESS;
}

CUresult LentMemory::take_back() {
  std::vector<std::byte> now;
  for (const Loan& loan : loans_) {
    now.resize(loan.sent.size());
    const CUresult e = copy_to_host(s_, stream_, now.data(), now.size(), {loan.copy, now.size()},
                                    {now.size()}, true);
    if (e != CUDA_SUCCESS) return e;
    // It may have been freed meanwhile, in another thread: that is the program's own fault, as it
    // would be natively.
    auto* to = reinterpret_cast<std::byte*>(loan.start);
    for (size_t i = 0; i < now.size(); ++i)
      if (now[i] != loan.sent[i]) to[i] = now[i];
  }
  return CUDA_SUCCESS;
}

}  // namespace sluice::client
