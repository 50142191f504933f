// SPDX-License-Identifier: Apache-2.0
// The two ways in which nvcc packs a part of a fat binary: blocks of LZ4, and zstd, which is nvcc
// 13's own choice. LZ4's format is a page; zstd is the machine's library, loaded when the first
// such image comes.
#include "image_packing.h"

#include <dlfcn.h>

#include <cstring>

namespace sluice::fat_binary {

namespace {

// As <zstd.h> declares them; they have not changed since 1.0.
struct Zstd {
  size_t (*decompress)(void* to, size_t room, const void* from, size_t bytes) = nullptr;
  unsigned (*is_error)(size_t code) = nullptr;
  bool there() const { return decompress && is_error; }
};

const Zstd& zstd() {
  static const Zstd loaded = [] {
    Zstd z;
    if (void* library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL)) {
      z.decompress = reinterpret_cast<decltype(z.decompress)>(dlsym(library, "ZSTD_decompress"));
      z.is_error = reinterpret_cast<decltype(z.is_error)>(dlsym(library, "ZSTD_isError"));
    }
    return z;
  }();
  return loaded;
}

// A length of LZ4: four bits, and more bytes while they are full.
bool length(std::span<const std::byte> from, size_t* at, size_t* n) {
  if (*n != 15) return true;
  for (std::byte more{255}; more == std::byte{255};) {
    if (*at >= from.size()) return false;
    more = from[(*at)++];
    *n += static_cast<size_t>(more);
  }
  return true;
}

bool unpack_zstd(std::span<const std::byte> from, std::span<std::byte> to, std::string* why) {
  if (!zstd().there()) {
    *why =
        "it is packed with zstd, and this node has no libzstd.so.1: install libzstd1 (Debian) "
        "or libzstd (Red Hat)";
    return false;
  }
  const size_t n = zstd().decompress(to.data(), to.size(), from.data(), from.size());
  return !zstd().is_error(n) && n == to.size();
}

}  // namespace

bool unpack_lz4(std::span<const std::byte> from, std::span<std::byte> to) {
  size_t at = 0, out = 0;
  while (at < from.size()) {
    const auto token = static_cast<size_t>(from[at++]);
    size_t literals = token >> 4, copied = token & 15;
    if (!length(from, &at, &literals) || literals > from.size() - at || literals > to.size() - out)
      return false;
    if (literals) std::memcpy(to.data() + out, from.data() + at, literals);
    at += literals;
    out += literals;
    if (at == from.size()) break;  // the last piece has literals only
    if (from.size() - at < 2) return false;
    const size_t back = static_cast<size_t>(from[at]) | static_cast<size_t>(from[at + 1]) << 8;
    at += 2;
    if (!length(from, &at, &copied)) return false;
    copied += 4;
    if (back == 0 || back > out || copied > to.size() - out) return false;
    for (; copied > 0; --copied, ++out) to[out] = to[out - back];  // it may overlap itself
  }
  return out == to.size();
}

bool unpack(const Part& part, std::span<const std::byte> payload, std::vector<std::byte>* content,
            std::string* why) {
  *why = "it does not unpack as it says";
  if (part.packed_bytes > payload.size() || part.unpacked_bytes == 0 ||
      part.unpacked_bytes > kMaxUnpacked)
    return false;
  content->resize(part.unpacked_bytes);
  const auto packed = payload.first(part.packed_bytes);
  return part.flags & kLz4 ? unpack_lz4(packed, *content) : unpack_zstd(packed, *content, why);
}

}  // namespace sluice::fat_binary
