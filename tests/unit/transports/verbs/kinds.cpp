// The conformance suite over the scripted fabric: every transport is a process of its own with two RoCE
// ports.
#include "tests/unit/transports/pair.h"
#include "tests/unit/transports/verbs/scripted_provider.h"
#include "transports/verbs/verbs.h"

namespace cenote::transport::test {
namespace {

using verbs::test::Clockwork;
using verbs::test::ScriptedFabric;

struct World {
  explicit World(bool lagging) {
    fabric.add_device(verbs::test::roce_device("card0", "10.0.0.1"));
    fabric.add_device(verbs::test::roce_device("card1", "10.0.0.2"));
    if (!lagging) return;
    fabric.lagging(7);
    clockwork = std::make_unique<Clockwork>(fabric);
  }
  VerbsOptions options() {
    apis.push_back(fabric.process("process " + std::to_string(apis.size()), {"card0", "card1"}).api());
    VerbsOptions options;
    options.api = apis.back().get();
    return options;
  }
  ScriptedFabric fabric;
  std::unique_ptr<Clockwork> clockwork;  ///< for tests whose two sides both sleep
  std::vector<std::shared_ptr<const verbs::VerbsApi>> apis;
};

/// One world of each kind a test, so that what a test leaves is no matter to the next.
struct Worlds : testing::EmptyTestEventListener {
  std::unique_ptr<World> at_once, lagging;
  void OnTestEnd(const testing::TestInfo& /*test*/) override {
    at_once.reset();
    lagging.reset();
  }
};

World& world(bool lagging) {
  static auto* const worlds = [] {
    auto made = std::make_unique<Worlds>();
    Worlds* const kept = made.get();
    testing::UnitTest::GetInstance()->listeners().Append(made.release());
    return kept;
  }();
  auto& wanted = lagging ? worlds->lagging : worlds->at_once;
  if (!wanted) wanted = std::make_unique<World>(lagging);
  return *wanted;
}

Kind kind(std::string name, bool lagging) {
  return {std::move(name),
          [lagging] { return make_verbs_transport(world(lagging).options()); },
          [lagging](FabricOptions& options) { options.verbs = world(lagging).options(); },
          1000,
          200,
          lagging};
}

}  // namespace

std::vector<Kind> kinds() { return {kind("verbs", false), kind("verbs_lagging", true)}; }

}  // namespace cenote::transport::test
