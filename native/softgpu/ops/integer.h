// SPDX-License-Identifier: Apache-2.0
// Picks the instantiation of an integer handler for a PTX type. Used by arithmetic, bits, compare.
#pragma once

#include "softgpu/ops/lanes.h"

namespace sluice::softgpu {

// Pick<T>() must yield a Handler for the C++ integer type T.
template <class Pick>
Handler for_integer(Decoder& d, Type type, Pick pick) {
  switch (type) {
    case Type::kU16:
    case Type::kB16:
      return pick.template operator()<uint16_t>();
    case Type::kS16:
      return pick.template operator()<int16_t>();
    case Type::kU32:
    case Type::kB32:
      return pick.template operator()<uint32_t>();
    case Type::kS32:
      return pick.template operator()<int32_t>();
    case Type::kU64:
    case Type::kB64:
      return pick.template operator()<uint64_t>();
    case Type::kS64:
      return pick.template operator()<int64_t>();
    default:
      d.unsupported(std::string("type .") + type_name(type));
  }
}

}  // namespace sluice::softgpu
