// SPDX-License-Identifier: Apache-2.0
// The linker. This GPU runs PTX, so the product of a link is PTX: its one PTX input, whole, which
// is loaded like any other image. Joining several by their text would be wrong (names that are
// private to one would meet), so that is refused, with the reason in the error log.
#include <cstring>

#include "softgpu/api/image.h"

namespace sluice::softgpu {
namespace {

struct Link {
  JitLog log;
  std::string image;
};

template <class F>
CUresult with_link(CUlinkState state, F&& body) noexcept {
  return with_context([&](Context&) -> CUresult {
    return state ? body(*reinterpret_cast<Link*>(state)) : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult refuse(const Link& link, const char* why) {
  link.log.write(std::string("the software GPU ") + why);
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuLinkCreate_v2(unsigned int count, CUjit_option* options, void** values,
                         CUlinkState* state) {
  return with_context([&](Context&) -> CUresult {
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    *state = reinterpret_cast<CUlinkState>(new Link{JitLog::from(count, options, values), {}});
    return CUDA_SUCCESS;
  });
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t bytes,
                          const char*, unsigned int, CUjit_option*, void**) {
  return with_link(state, [&](Link& link) -> CUresult {
    if (!data || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_JIT_INPUT_PTX) return refuse(link, "links nothing but PTX");
    if (!link.image.empty()) return refuse(link, "links no more than one piece of PTX");
    const auto* text = static_cast<const char*>(data);
    link.image.assign(text, strnlen(text, bytes));
    return CUDA_SUCCESS;
  });
}

CUresult cuLinkComplete(CUlinkState state, void** image, size_t* bytes) {
  return with_link(state, [&](Link& link) -> CUresult {
    if (!image) return CUDA_ERROR_INVALID_VALUE;
    if (link.image.empty()) {
      link.log.write("nothing was added to the link");
      return CUDA_ERROR_INVALID_IMAGE;
    }
    *image = link.image.data();
    // The NUL counts: who copies the image by its size can load the copy.
    if (bytes) *bytes = link.image.size() + 1;
    return CUDA_SUCCESS;
  });
}

CUresult cuLinkDestroy(CUlinkState state) {
  return with_link(state, [&](Link& link) -> CUresult {
    delete &link;
    return CUDA_SUCCESS;
  });
}
