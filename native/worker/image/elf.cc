// SPDX-License-Identifier: Apache-2.0
// Machine code: an ELF file whose variables are sections without content (.nv.global), sections
// with it (.nv.global.init, .nv.constant*), segments and symbols. NVIDIA's driver goes by the
// largest of what they say (docs/decisions/0001-what-code-takes.md), and so does this.
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "worker/image/image.h"

namespace sluice::worker {

namespace {

bool fits(uint64_t offset, uint64_t bytes, size_t whole) {
  return offset <= whole && bytes <= whole - offset;
}

uint64_t plus(uint64_t a, uint64_t b) { return a > ~b ? ~uint64_t{0} : a + b; }

template <class T>
bool read(std::span<const std::byte> from, uint64_t offset, uint64_t count, std::vector<T>* to) {
  if (count > from.size() / sizeof(T) || !fits(offset, count * sizeof(T), from.size()))
    return false;
  to->resize(count);
  if (count) std::memcpy(to->data(), from.data() + offset, count * sizeof(T));
  return true;
}

// Shared memory lies on the chip. There is little of it, so that a section that is no more than
// called so is not let pass.
bool on_chip(std::string_view name, uint64_t bytes) {
  constexpr uint64_t kMostShared = 1 << 20;
  return name.starts_with(".nv.shared") && bytes <= kMostShared;
}

class Elf {
 public:
  bool open(std::span<const std::byte> all) {
    all_ = all;
    std::vector<Elf64_Ehdr> header;
    if (!read(all, 0, 1, &header)) return false;
    const Elf64_Ehdr& h = header[0];
    if (std::memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_ident[EI_CLASS] != ELFCLASS64 ||
        h.e_shentsize != sizeof(Elf64_Shdr) || h.e_phnum == PN_XNUM ||
        (h.e_phnum != 0 && h.e_phentsize != sizeof(Elf64_Phdr)) ||
        !read(all, h.e_shoff, 1, &sections_))
      return false;
    // What does not fit into the header stands in the first section.
    const uint64_t count = h.e_shnum ? h.e_shnum : sections_[0].sh_size;
    const uint64_t names = h.e_shstrndx == SHN_XINDEX ? sections_[0].sh_link : h.e_shstrndx;
    if (!read(all, h.e_shoff, count, &sections_) || names >= count ||
        !read(all, h.e_phnum ? h.e_phoff : 0, h.e_phnum, &segments_))
      return false;
    for (const Elf64_Shdr& s : sections_)
      if (s.sh_type != SHT_NOBITS && s.sh_type != SHT_NULL &&
          !fits(s.sh_offset, s.sh_size, all.size()))
        return false;
    for (const Elf64_Phdr& p : segments_)
      if (!fits(p.p_offset, p.p_filesz, all.size())) return false;
    names_ = sections_[names];
    // Whatever its type says: it is read.
    return names_.sh_type != SHT_NOBITS && fits(names_.sh_offset, names_.sh_size, all.size());
  }

  uint64_t data_bytes() {
    std::vector<uint64_t> of_section(sections_.size());
    uint64_t elsewhere = 0, in_segments = 0, in_sections = 0, shared = 0;
    for (size_t i = 0; i < sections_.size(); ++i) {
      const Elf64_Shdr& s = sections_[i];
      const bool loaded = (s.sh_flags & SHF_ALLOC) && !(s.sh_flags & SHF_EXECINSTR);
      if (s.sh_type == SHT_NOBITS || (s.sh_type == SHT_PROGBITS && loaded))
        of_section[i] = plus(s.sh_size, s.sh_addralign > 512 ? s.sh_addralign : 0);
    }
    std::vector<uint64_t> of_symbols(sections_.size());
    for (const Elf64_Shdr& s : sections_)
      if (s.sh_type == SHT_SYMTAB || s.sh_type == SHT_DYNSYM)
        add_symbols(s, &of_symbols, &of_section, &elsewhere);
    for (size_t i = 0; i < sections_.size(); ++i) {
      const uint64_t bytes = std::max(of_section[i], of_symbols[i]);
      uint64_t& sum = on_chip(name(sections_[i]), bytes) ? shared : in_sections;
      sum = plus(sum, bytes);
    }
    for (const Elf64_Phdr& p : segments_)
      // Of segments with code, what is not in the file.
      if (p.p_type == PT_LOAD)
        in_segments = plus(in_segments, !(p.p_flags & PF_X)      ? p.p_memsz
                                        : p.p_memsz > p.p_filesz ? p.p_memsz - p.p_filesz
                                                                 : 0);
    in_segments -= std::min(in_segments, shared);
    return std::max(plus(in_sections, elsewhere), in_segments);
  }

 private:
  std::string_view name(const Elf64_Shdr& s) const {
    if (s.sh_name >= names_.sh_size) return {};
    const char* at = reinterpret_cast<const char*>(all_.data()) + names_.sh_offset + s.sh_name;
    return {at, strnlen(at, names_.sh_size - s.sh_name)};
  }

  // What symbols say that variables take; two that lie at one place are two.
  void add_symbols(const Elf64_Shdr& table, std::vector<uint64_t>* sums,
                   std::vector<uint64_t>* ends, uint64_t* elsewhere) const {
    std::vector<Elf64_Sym> symbols;
    read(all_, table.sh_offset, table.sh_size / sizeof(Elf64_Sym), &symbols);
    for (const Elf64_Sym& y : symbols) {
      const int type = ELF64_ST_TYPE(y.st_info);
      if (type == STT_FUNC || type == STT_SECTION || type == STT_FILE || y.st_size == 0) continue;
      if (y.st_shndx >= sections_.size() || y.st_shndx == SHN_UNDEF) {
        *elsewhere = plus(*elsewhere, y.st_size);
        continue;
      }
      if (sections_[y.st_shndx].sh_flags & SHF_EXECINSTR) continue;
      (*sums)[y.st_shndx] = plus((*sums)[y.st_shndx], y.st_size);
      (*ends)[y.st_shndx] = std::max((*ends)[y.st_shndx], plus(y.st_value, y.st_size));
    }
  }

  std::span<const std::byte> all_;
  std::vector<Elf64_Shdr> sections_;
  std::vector<Elf64_Phdr> segments_;
  Elf64_Shdr names_{};
};

}  // namespace

bool elf_needs(std::span<const std::byte> image, uint64_t* data_bytes) {
  Elf elf;
  if (!elf.open(image)) return false;
  *data_bytes = elf.data_bytes();
  return true;
}

}  // namespace sluice::worker
