// SPDX-License-Identifier: Apache-2.0
// Every function whose frame is generated: what the application passes reaches the driver, what the
// driver answers reaches the application.
#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

// Few random arguments of some functions are allowed, and one has to be.
constexpr int kRounds = 400;

// The text below is made by native/codegen.
#include "tests/generated_roundtrip.inc"

}  // namespace
}  // namespace sluice::test
