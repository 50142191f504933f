// SPDX-License-Identifier: Apache-2.0
// What an image of code will take of a GPU's memory, found out before the driver sees it (rule 6).
// An image is PTX text, machine code (ELF), or a fat binary of both. Variables take memory without
// being in the image: 130 bytes of PTX can ask for a GiB. Called by code.cc and link.cc for what a
// client sent, so nothing in it is believed: what an image says of its own size is held against
// what has come, and where two places tell one size, the larger counts. Needs no driver and no
// session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sluice::worker {

struct ImageNeeds {
  uint64_t data_bytes = 0;  // of device memory for variables, of the largest part
  uint64_t code_bytes = 0;  // the image, or its largest part unpacked
};

enum class ImageVerdict {
  kUsable,
  kBroken,   // it claims to be longer than it is, or is no image
  kNoParts,  // a fat binary of which no part can be read
};

struct Examined {
  ImageVerdict verdict = ImageVerdict::kUsable;
  ImageNeeds needs;
  bool has_ptx = false;  // the driver may have to compile it
  std::string why;       // for people, where something is wrong or was left out
  // When not empty, what has to be loaded in the image's place: the fat binary without the parts
  // whose needs nobody can tell.
  std::vector<std::byte> instead;
};

Examined examine_image(std::span<const std::byte> image);

// The pieces, each of which adds to what it is given.
// Of ELF: false when it claims more than there is.
bool elf_needs(std::span<const std::byte> elf, uint64_t* data_bytes);
// All that text declares in .global and .const. An estimate that is never below: endless, where
// declarations lie inside of one another so often that reading them all would take too long.
// `steps`: how many bytes were looked at for it, each as often as it was; never many times the
// text's size.
uint64_t ptx_needs(std::span<const std::byte> text, uint64_t* steps = nullptr);

}  // namespace sluice::worker
