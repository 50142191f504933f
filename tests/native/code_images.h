// SPDX-License-Identifier: Apache-2.0
// Images of code for tests: fat binaries as nvcc writes them, and skeletons of cubins.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "image_format.h"

namespace sluice::test {

template <class T>
void put(std::vector<std::byte>* to, const T& value) {
  const auto* at = reinterpret_cast<const std::byte*>(&value);
  to->insert(to->end(), at, at + sizeof value);
}

inline std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* at = reinterpret_cast<const std::byte*>(text.data());
  return {at, at + text.size()};
}

struct Section {
  std::string name;
  uint32_t type = SHT_NOBITS;
  uint64_t flags = SHF_ALLOC | SHF_WRITE, size = 0;
};
struct Variable {
  uint16_t section;
  uint64_t size, value = 0;
  unsigned char type = STT_OBJECT;
};

// A cubin's skeleton: the sections, a table of symbols, one segment.
inline std::vector<std::byte> elf(const std::vector<Section>& sections,
                                  const std::vector<Variable>& variables = {},
                                  uint64_t segment = 0) {
  std::string names(1, '\0');
  std::vector<Elf64_Shdr> headers(1);
  std::vector<std::byte> content;
  const auto add = [&](const std::string& name, uint32_t type, uint64_t flags, uint64_t size) {
    Elf64_Shdr h{};
    h.sh_name = static_cast<uint32_t>(names.size());
    h.sh_type = type;
    h.sh_flags = flags;
    h.sh_offset = sizeof(Elf64_Ehdr) + content.size();
    h.sh_size = size;
    headers.push_back(h);
    names += name + '\0';
    if (type != SHT_NOBITS) content.resize(content.size() + size);
  };
  for (const Section& s : sections) add(s.name, s.type, s.flags, s.size);
  add(".symtab", SHT_SYMTAB, 0, variables.size() * sizeof(Elf64_Sym));
  for (size_t i = 0; i < variables.size(); ++i) {
    Elf64_Sym y{};
    y.st_info = variables[i].type;
    y.st_shndx = variables[i].section;
    y.st_size = variables[i].size;
    y.st_value = variables[i].value;
    std::memcpy(content.data() + content.size() - (variables.size() - i) * sizeof y, &y, sizeof y);
  }
  names += ".shstrtab";
  Elf64_Shdr table{};
  table.sh_name = static_cast<uint32_t>(names.size() - 9);
  table.sh_type = SHT_STRTAB;
  table.sh_offset = sizeof(Elf64_Ehdr) + content.size();
  names += '\0';
  table.sh_size = names.size();
  headers.push_back(table);
  for (const char c : names) content.push_back(static_cast<std::byte>(c));
  Elf64_Ehdr h{};
  std::memcpy(h.e_ident, ELFMAG, SELFMAG);
  h.e_ident[EI_CLASS] = ELFCLASS64;
  h.e_shoff = sizeof h + content.size();
  h.e_shentsize = sizeof(Elf64_Shdr);
  h.e_shnum = static_cast<uint16_t>(headers.size());
  h.e_shstrndx = static_cast<uint16_t>(headers.size() - 1);
  h.e_phoff = h.e_shoff + headers.size() * sizeof(Elf64_Shdr);
  h.e_phentsize = sizeof(Elf64_Phdr);
  h.e_phnum = 1;
  std::vector<std::byte> all;
  put(&all, h);
  all.insert(all.end(), content.begin(), content.end());
  for (const Elf64_Shdr& one : headers) put(&all, one);
  Elf64_Phdr p{};
  p.p_type = PT_LOAD;
  p.p_flags = PF_R | PF_W;
  p.p_memsz = segment;
  put(&all, p);
  return all;
}

// As nvcc writes it; `unpacked`: how long the payload is unpacked, where it is packed.
struct FatPart {
  uint16_t kind;
  uint32_t arch;
  std::vector<std::byte> payload;
  uint64_t flags = 0, unpacked = 0;
  uint32_t header_bytes = sizeof(fat_binary::Part);
};

inline std::vector<std::byte> fat_part(const FatPart& p) {
  fat_binary::Part header{};
  header.kind = p.kind;
  header.version = 0x101;
  header.header_bytes = p.header_bytes;
  header.bytes = (p.payload.size() + 7) / 8 * 8;
  header.packed_bytes = static_cast<uint32_t>(p.unpacked ? p.payload.size() : 0);
  header.major = 9;
  header.arch = p.arch;
  header.flags = p.flags | 0x11;
  header.unpacked_bytes = p.unpacked;
  std::vector<std::byte> all;
  put(&all, header);
  all.resize(p.header_bytes);
  all.insert(all.end(), p.payload.begin(), p.payload.end());
  all.resize(p.header_bytes + header.bytes);
  return all;
}

inline std::vector<std::byte> fat_container(const std::vector<std::vector<std::byte>>& parts) {
  fat_binary::Container header{fat_binary::kContainerMagic, 1, sizeof header, 0};
  for (const auto& p : parts) header.body_bytes += p.size();
  std::vector<std::byte> all;
  put(&all, header);
  for (const auto& p : parts) all.insert(all.end(), p.begin(), p.end());
  return all;
}

}  // namespace sluice::test
