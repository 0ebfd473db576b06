// What the conformance suite runs on: two transports of one kind in this process, joined by an endpoint each.
// A new transport joins the suite by a line in kinds.cpp, or by a file of its own like it that the same tests
// are linked with.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "transports/fabric.h"
#include "transports/transport.h"

namespace cenote::transport::test {

using namespace std::chrono_literals;

struct Kind {
  std::string name;  ///< the transport's, and after an underscore what is special
  std::function<Result<std::unique_ptr<Transport>>()> make;
  std::function<void(FabricOptions&)> prepare{};  ///< what a fabric needs to have it; may be empty
  std::uint64_t unseen = 4000;  ///< signals that a peer who does not look is given before puts wait for it
  int rounds = 200;             ///< of what is tried again and again with new transports
  bool contended = false;  ///< to poll it is to wait for a lock of the test's own, which looks like sleep
  [[nodiscard]] std::string transport() const { return name.substr(0, name.find('_')); }
};

inline void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

std::vector<Kind> kinds();

inline Deadline soon() { return Deadline::in(60s); }  // generous: a noisy machine is no failure

inline std::unique_ptr<Transport> make(const Kind& kind) {
  auto made = kind.make();
  if (!made) {
    ADD_FAILURE() << made.error().message();
    return nullptr;
  }
  return std::move(*made);
}

/// Progresses all until `done`. False: the deadline passed.
inline bool drive(const std::vector<Transport*>& transports, const std::function<bool()>& done) {
  const Deadline deadline = soon();
  while (!done()) {
    if (deadline.passed()) return false;
    for (Transport* transport : transports) transport->progress();
  }
  return true;
}

struct Pair {
  std::unique_ptr<Transport> left, right;
  std::unique_ptr<Endpoint> to_right, to_left;

  explicit Pair(const Kind& kind, std::uint32_t channel = 0) : left(make(kind)), right(make(kind)) {
    auto l = left->connect(right->address(), "right", channel, soon());
    auto r = right->connect(left->address(), "left", channel, soon());
    if (!l || !r) {
      ADD_FAILURE() << (!l ? l.error() : r.error()).message();
      return;
    }
    to_right = std::move(*l);
    to_left = std::move(*r);
  }
  bool until(const std::function<bool()>& done) const { return drive({left.get(), right.get()}, done); }
  /// Waits until a signal went each way.
  void settle() const {
    ASSERT_TRUE(to_right->put({}, {}, 63, 0));
    ASSERT_TRUE(to_left->put({}, {}, 63, 0));
    ASSERT_TRUE(until([&] { return to_right->signal(63) == 1 && to_left->signal(63) == 1; }));
    (void)finished(*to_right, 1);
    (void)finished(*to_left, 1);
  }
  /// Progresses until `count` operations of `endpoint` have finished.
  std::vector<Completion> finished(Endpoint& endpoint, std::size_t count) const {
    std::vector<Completion> all;
    EXPECT_TRUE(until([&] {
      Completion some[16];
      const std::size_t got = endpoint.poll(some);
      all.insert(all.end(), some, some + got);
      return all.size() >= count;
    })) << "only "
        << all.size() << " of " << count << " operations finished";
    return all;
  }
};

inline std::unique_ptr<Region> region(Transport& transport, std::size_t bytes) {
  auto made = transport.allocate(bytes);
  if (!made) {
    ADD_FAILURE() << made.error().message();
    return nullptr;
  }
  return std::move(*made);
}

/// Bytes that differ by place and by seed.
inline Bytes pattern(std::size_t size, std::uint64_t seed) {
  Bytes bytes(size);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (auto& byte : bytes) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    byte = static_cast<std::byte>(state);
  }
  return bytes;
}

inline bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

class Conformance : public testing::TestWithParam<Kind> {};

inline std::string kind_name(const testing::TestParamInfo<Kind>& info) { return info.param.name; }

}  // namespace cenote::transport::test

#define CENOTE_CONFORMANCE(Suite)                                                                   \
  INSTANTIATE_TEST_SUITE_P(Transport, Suite, testing::ValuesIn(::cenote::transport::test::kinds()), \
                           ::cenote::transport::test::kind_name)
