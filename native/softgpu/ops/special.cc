// SPDX-License-Identifier: Apache-2.0
#include "softgpu/ops/special.h"

#include <chrono>

#include "softgpu/interp/block.h"
#include "softgpu/interp/launch_state.h"

namespace sluice::softgpu {
namespace {

// Nominal clock of the software GPU; cuDeviceGetAttribute says the same.
constexpr uint64_t kClockMegahertz = 1000;

enum class Source : uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtid,  // + component
  kCtaid = kNtid + 3,
  kNctaid = kCtaid + 3,
  kLane = kNctaid + 3,
  kWarp,
  kWarps,
  kSm,
  kSms,
  kGrid,
  kDynamicShared,
  kTotalShared,
  kMaskEq,
  kMaskLe,
  kMaskLt,
  kMaskGe,
  kMaskGt,
  kZero,
  kOne,
};

uint64_t nanoseconds() {
  auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

uint32_t scalar(Exec& x, Source source) {
  const LaunchState& launch = *x.launch;
  uint32_t code = static_cast<uint32_t>(source);
  auto component = [&](Source first, const uint32_t* values) {
    return values[code - static_cast<uint32_t>(first)];
  };
  if (source >= Source::kNtid && source < Source::kCtaid) {
    return component(Source::kNtid, launch.block);
  }
  if (source >= Source::kCtaid && source < Source::kNctaid) {
    return component(Source::kCtaid, x.block->ctaid);
  }
  if (source >= Source::kNctaid && source < Source::kLane) {
    return component(Source::kNctaid, launch.grid);
  }
  switch (source) {
    case Source::kWarp:
      return x.warp_id;
    case Source::kWarps:
      return 32;  // resident warps of a multiprocessor
    case Source::kSm:
      return x.block->ctaid[0] % launch.sm_count;
    case Source::kSms:
      return launch.sm_count;
    case Source::kGrid:
      return static_cast<uint32_t>(launch.grid_id);
    case Source::kDynamicShared:
      return launch.dynamic_shared;
    case Source::kTotalShared:
      return x.shared_size;
    case Source::kOne:
      return 1;
    default:
      return 0;
  }
}

bool read_scalar(Exec& x, const Instr& in) {
  uint32_t value = scalar(x, static_cast<Source>(in.imm));
  uint32_t* d = x.reg<uint32_t>(in.r[0]);
  x.each([&](uint32_t l) { d[l] = value; });
  return true;
}

bool read_tid(Exec& x, const Instr& in) {
  const uint32_t* ids = x.lanes->tid[in.imm];
  uint32_t* d = x.reg<uint32_t>(in.r[0]);
  x.each([&](uint32_t l) { d[l] = ids[l]; });
  return true;
}

bool read_lane(Exec& x, const Instr& in) {
  uint32_t* d = x.reg<uint32_t>(in.r[0]);
  Source source = static_cast<Source>(in.imm);
  x.each([&](uint32_t l) {
    uint32_t eq = 1u << l;
    uint32_t lt = eq - 1;
    switch (source) {
      case Source::kLane:
        d[l] = l;
        break;
      case Source::kMaskEq:
        d[l] = eq;
        break;
      case Source::kMaskLt:
        d[l] = lt;
        break;
      case Source::kMaskLe:
        d[l] = lt | eq;
        break;
      case Source::kMaskGt:
        d[l] = ~(lt | eq);
        break;
      default:
        d[l] = ~lt;
        break;
    }
  });
  return true;
}

template <class T, int kWhich>
bool read_clock(Exec& x, const Instr& in) {
  uint64_t value;
  if constexpr (kWhich == 0) {
    value = nanoseconds() * kClockMegahertz / 1000;
  } else if constexpr (kWhich == 1) {
    value = nanoseconds();
  } else if constexpr (kWhich == 2) {
    value = (nanoseconds() * kClockMegahertz / 1000) >> 32;
  } else {
    value = x.launch->grid_id;
  }
  T* d = x.reg<T>(in.r[0]);
  x.each([&](uint32_t l) { d[l] = static_cast<T>(value); });
  return true;
}

template <class From, class To>
bool resize(Exec& x, const Instr& in) {
  const From* a = x.reg<From>(in.r[1]);
  To* d = x.reg<To>(in.r[0]);
  x.each([&](uint32_t l) { d[l] = static_cast<To>(a[l]); });
  return true;
}

template <class T>
bool dynamic_shared(Exec& x, const Instr& in) {
  T* d = x.reg<T>(in.r[0]);
  T value = static_cast<T>(x.dynamic_shared_offset + in.imm);
  x.each([&](uint32_t l) { d[l] = value; });
  return true;
}

template <class T>
bool local_start(Exec& x, const Instr& in) {
  T* d = x.reg<T>(in.r[0]);
  T value = static_cast<T>(x.local_frame + in.imm);
  x.each([&](uint32_t l) { d[l] = value; });
  return true;
}

bool parameter_start(Exec& x, const Instr& in) {
  uint64_t* d = x.reg<uint64_t>(in.r[0]);
  uint64_t value = reinterpret_cast<uintptr_t>(x.params) + in.imm;
  x.each([&](uint32_t l) { d[l] = value; });
  return true;
}

bool negate(Exec& x, const Instr& in) {
  uint32_t value = ~x.pred(in.r[1]);
  uint32_t& d = x.pred(in.r[0]);
  d = (d & ~x.mask) | (value & x.mask);
  return true;
}

struct Row {
  const char* name;
  Source source;
};

constexpr Row kScalars[] = {
    {"%clusterid", Source::kCtaid}, {"%nclusterid", Source::kNctaid}, {"%ntid", Source::kNtid},
    {"%ctaid", Source::kCtaid},     {"%nctaid", Source::kNctaid},
};

constexpr Row kPlain[] = {
    {"%warpid", Source::kWarp},
    {"%nwarpid", Source::kWarps},
    {"%smid", Source::kSm},
    {"%nsmid", Source::kSms},
    {"%dynamic_smem_size", Source::kDynamicShared},
    {"%total_smem_size", Source::kTotalShared},
    {"%aggr_smem_size", Source::kTotalShared},
    // A launch without clusters is a grid of clusters of one block.
    {"%cluster_ctarank", Source::kZero},
    {"%cluster_nctarank", Source::kOne},
    {"%cluster_ctaid.x", Source::kZero},
    {"%cluster_ctaid.y", Source::kZero},
    {"%cluster_ctaid.z", Source::kZero},
    {"%cluster_nctaid.x", Source::kOne},
    {"%cluster_nctaid.y", Source::kOne},
    {"%cluster_nctaid.z", Source::kOne},
};

constexpr Row kPerLane[] = {
    {"%laneid", Source::kLane},        {"%lanemask_eq", Source::kMaskEq},
    {"%lanemask_le", Source::kMaskLe}, {"%lanemask_lt", Source::kMaskLt},
    {"%lanemask_ge", Source::kMaskGe}, {"%lanemask_gt", Source::kMaskGt},
};

}  // namespace

std::optional<SpecialRegister> special_register(std::string_view name) {
  if (name.empty() || name[0] != '%') return std::nullopt;
  for (const Row& row : kPlain) {
    if (name == row.name) {
      return SpecialRegister{read_scalar, 4, static_cast<uint64_t>(row.source)};
    }
  }
  for (const Row& row : kPerLane) {
    if (name == row.name) return SpecialRegister{read_lane, 4, static_cast<uint64_t>(row.source)};
  }
  if (name == "%clock") return SpecialRegister{read_clock<uint32_t, 0>, 4, 0};
  if (name == "%clock_hi") return SpecialRegister{read_clock<uint32_t, 2>, 4, 0};
  if (name == "%clock64") return SpecialRegister{read_clock<uint64_t, 0>, 8, 0};
  if (name == "%globaltimer") return SpecialRegister{read_clock<uint64_t, 1>, 8, 0};
  if (name == "%globaltimer_lo") return SpecialRegister{read_clock<uint32_t, 1>, 4, 0};
  if (name == "%gridid") return SpecialRegister{read_clock<uint64_t, 3>, 8, 0};
  size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot + 2 != name.size()) return std::nullopt;
  char letter = name[dot + 1];
  if (letter < 'x' || letter > 'z') return std::nullopt;
  uint64_t component = static_cast<uint64_t>(letter - 'x');
  std::string_view stem = name.substr(0, dot);
  if (stem == "%tid") return SpecialRegister{read_tid, 4, component};
  for (const Row& row : kScalars) {
    if (stem == row.name) {
      return SpecialRegister{read_scalar, 4, static_cast<uint64_t>(row.source) + component};
    }
  }
  return std::nullopt;
}

Handler special_resize(uint32_t from, uint32_t to) {
  if (from == 4) return to == 8 ? resize<uint32_t, uint64_t> : resize<uint32_t, uint16_t>;
  return to == 4 ? resize<uint64_t, uint32_t> : resize<uint64_t, uint16_t>;
}

Handler dynamic_shared_address(uint32_t width) {
  return width == 8 ? dynamic_shared<uint64_t> : dynamic_shared<uint32_t>;
}

Handler local_address(uint32_t width) {
  return width == 8 ? local_start<uint64_t> : local_start<uint32_t>;
}

Handler kernel_parameter_address() { return parameter_start; }

Handler negate_predicate() { return negate; }

}  // namespace sluice::softgpu
