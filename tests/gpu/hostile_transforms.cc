// SPDX-License-Identifier: Apache-2.0
// cuFFT: plans whose strides and embeddings are none.
#include "client/library/object.h"
#include "tests/gpu/hostile_libraries.h"

extern "C" {
int32_t cufftCreate(int32_t* plan);
}

namespace hostile {

namespace {

uint64_t plan() {
  int32_t made;
  need(cufftCreate(&made), "cufftCreate");
  return sluice::client::library::id_of_number(made);
}

int transform(int stride, int embedded) {
  Frame f("cufftMakePlanMany");
  const int32_t n[] = {8, 8}, embed[] = {0, embedded};
  f.set(0, plan())
      .set(1, 2)
      .carry(2, n, 8)
      .carry(3, embed, 8)
      .set(4, static_cast<uint32_t>(stride));
  f.set(5, 64).carry(6, embed, 8).set(7, 1).set(8, 64).set(9, 0x29).set(10, 1).expect(11, 8);
  return say(f.send());
}
int honest_transform() { return transform(1, 8); }
int stride_of_zero() { return transform(0, 8); }
int embedding_of_zero() { return transform(1, 0); }

}  // namespace

Cases transform_cases() {
#define SLUICE_CASE(name) {#name, name}
  return {
      SLUICE_CASE(honest_transform),
      SLUICE_CASE(stride_of_zero),
      SLUICE_CASE(embedding_of_zero),
  };
#undef SLUICE_CASE
}

}  // namespace hostile
