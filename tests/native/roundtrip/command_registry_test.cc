// SPDX-License-Identifier: Apache-2.0
// The registry of commands against the handlers: each command has one, and a good frame of it
// creates and destroys what the registry says, and takes memory of the vGPU where the registry says
// so.
#include "wire/command_registry.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "library/objects.h"
#include "tests/native/roundtrip/fake_libraries.h"
#include "tests/native/roundtrip/valid_frames.h"

namespace sluice::test {
namespace {

using wire::CommandSpec;

// How many of each there are in the session, by the bit that names it.
std::map<uint64_t, size_t> counted(worker::Session& s) {
  size_t mappings = 0;
  for (const auto& v : s.vgpus) mappings += v->mappings.size();
  return {
      {wire::kStateStream, s.objects.streams.count()},
      {wire::kStateEvent, s.objects.events.count()},
      {wire::kStateModule, s.objects.modules.count()},
      {wire::kStateLibrary, s.objects.libraries.count()},
      {wire::kStateLink, s.objects.links.count()},
      {wire::kStateFunction, s.objects.functions.count()},
      {wire::kStateKernel, s.objects.kernels.count()},
      {wire::kStateAllocation, s.objects.allocations.count()},
      {wire::kStateSharedEvent, s.objects.shared_events.count()},
      {wire::kStateGraph, s.objects.graphs.count()},
      {wire::kStateGraphExec, s.objects.graph_execs.count()},
      {wire::kStateArray, s.objects.arrays.count()},
      {wire::kStateMipmappedArray, s.objects.mipmapped_arrays.count()},
      {wire::kStateTexture, s.objects.textures.size()},
      {wire::kStateGreenContext, s.objects.green_contexts.count()},
      {wire::kStateDevResource, s.objects.dev_resources.size() + s.objects.dev_descriptions.size()},
      {wire::kStateLibraryObject, worker::Libraries::get().objects.count()},
      {wire::kStateBlob, s.uploads.count()},
      {wire::kStateMapping, mappings},
  };
}

std::string name_of(uint64_t bit) { return "bit " + std::to_string(__builtin_ctzll(bit)); }

TEST(CommandRegistry, EveryCommandHasAHandler) {
  const auto& table = worker::dispatch_table();
  std::set<uint16_t> ids;
  for (const CommandSpec& c : wire::kCommands) {
    EXPECT_TRUE(ids.insert(c.id).second) << c.name;
    EXPECT_EQ(wire::find_command(c.id), &c);
    const bool has = table[c.id].run != nullptr;
    EXPECT_EQ(has, c.command_class != wire::CommandClass::kSession) << c.name;
  }
  for (size_t id = 0; id < table.size(); ++id) {
    const bool own = id < wire::kFirstLibraryFunction || id >= wire::kPeerAccess;
    if (own && table[id].run) {
      EXPECT_TRUE(ids.contains(static_cast<uint16_t>(id))) << id;
    }
  }
}

TEST(CommandRegistry, CommandsDoToTheSessionWhatItSays) {
  size_t frames = 0;
  {
    FurnishedRig rig;
    frames = valid_frames(rig).size();
  }
  std::map<uint16_t, uint64_t> made, gone;
  std::set<uint16_t> sent;
  for (size_t i = 0; i < frames; ++i) {
    FurnishedRig rig;
    const ValidFrame f = valid_frames(rig)[i];
    const CommandSpec* spec = wire::find_command(f.function);
    if (!spec) continue;
    if (f.in_capture) rig.begin_capture();
    if (f.linked) rig.complete_link();
    if (f.node) rig.connect_node();
    worker::Session& s = rig.session();
    const auto before = counted(s);
    const uint64_t room = s.vgpus[0]->memory.room();
    Answer answer;
    ASSERT_TRUE(rig.dispatch(f.header(), f.body(), &answer)) << f.name << ": " << s.reason();
    sent.insert(f.function);
    for (const auto& [bit, count] : counted(s)) {
      if (count > before.at(bit)) {
        made[f.function] |= bit;
        EXPECT_TRUE(spec->creates & bit) << f.name << " made one of " << name_of(bit);
      }
      if (count < before.at(bit)) {
        gone[f.function] |= bit;
        // A blob is taken by whoever loads it.
        EXPECT_TRUE((spec->destroys & bit) || bit == wire::kStateBlob)
            << f.name << " destroyed one of " << name_of(bit);
      }
    }
    if (s.vgpus[0]->memory.room() < room) {
      EXPECT_EQ(spec->allocates, wire::Allocates::kDevice) << f.name << " took the vGPU's memory";
    }
  }
  uint64_t countable = 0;
  {
    FurnishedRig rig;
    for (const auto& [bit, count] : counted(rig.session())) countable |= bit;
  }
  for (const CommandSpec& c : wire::kCommands) {
    // The frame of CodeLoadKnown asks for code that the node does not have; a resource that the
    // session knows already is not made again; what a group of NCCL's destroys is
    // LibraryProofs.ACommunicatorIsDestroyedOnceInAGroup's.
    if (!sent.contains(c.id) || c.id == wire::kCodeLoadKnown) continue;
    const uint64_t creates = c.creates & countable & ~wire::kStateDevResource;
    const uint64_t destroys = c.id == library::id_sluiceNcclGroup ? 0 : c.destroys & countable;
    if (creates) {
      EXPECT_TRUE(made[c.id] & creates) << c.name << " made nothing";
    }
    if (destroys) {
      EXPECT_TRUE(gone[c.id] & destroys) << c.name << " destroyed nothing";
    }
  }
  EXPECT_GT(sent.size(), 130u);
}

}  // namespace
}  // namespace sluice::test
