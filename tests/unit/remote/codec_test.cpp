// The codec: every command of the table survives the wire, and nothing that is not a command is taken for
// one.
#include "pool/remote/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace cenote::pool::remote {
namespace {

/// Fills fields with values drawn on the generator; texts and blobs point into `store`.
struct Draw {
  std::mt19937_64& random;
  std::vector<std::string>& store;
  template <class T>
  void operator()(const char*, T& value) {
    if constexpr (std::is_same_v<T, Blob> || std::is_same_v<T, Text>) {
      store.emplace_back(random() % 70, static_cast<char>(random()));
      if constexpr (std::is_same_v<T, Blob>)
        value = as_bytes(store.back());
      else
        value = store.back();
    } else {
      value = static_cast<T>(random());
    }
  }
};

/// A command as text, to compare.
struct Spell {
  std::string text{};
  template <class T>
  void operator()(const char* name, const T& value) {
    text += std::string(" ") + name + ":";
    if constexpr (std::is_same_v<T, Blob>)
      text += as_text(value);
    else if constexpr (std::is_same_v<T, Text>)
      text += value;
    else
      text += std::to_string(value);
  }
};

template <class C>
std::string spell(const C& command) {
  Spell spelled;
  visit_fields(command, spelled);
  return std::string(C::label) + spelled.text;
}

template <class Visit>
void for_each_command(std::uint64_t seed, Visit&& visit) {
  std::mt19937_64 random(seed);
#define CENOTE_TEST_COMMAND(Struct, name, answer, fields) \
  {                                                       \
    std::vector<std::string> store;                       \
    store.reserve(8);                                     \
    Struct command;                                       \
    visit_fields(command, Draw{random, store});           \
    visit(command);                                       \
  }
  CENOTE_REMOTE_CALLS(CENOTE_TEST_COMMAND, CENOTE_REMOTE_NO_FIELD)
#undef CENOTE_TEST_COMMAND
}

TEST(Codec, EveryCommandOfTheTableSurvivesTheWire) {
  std::set<Opcode> seen;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    for_each_command(seed, [&](const auto& command) {
      using C = std::decay_t<decltype(command)>;
      std::vector<std::byte> bytes(4096);
      const auto size = encode(command, bytes);
      ASSERT_EQ(size, encoded_size(command));
      ASSERT_EQ(size % 8, 0U);
      const auto decoded = decode(std::span(bytes).first(size));
      ASSERT_TRUE(decoded) << decoded.error().message();
      ASSERT_TRUE(std::holds_alternative<C>(*decoded)) << C::label;
      EXPECT_EQ(spell(std::get<C>(*decoded)), spell(command));
      seen.insert(C::opcode);
    });
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(Opcode::count) - 1) << "an opcode without a row";
}

TEST(Codec, EveryAnsweredCommandOfClientsCarriesARequestNumber) {
  for_each_command(1, [](const auto& command) {
    using C = std::decay_t<decltype(command)>;
    if constexpr (C::answer != Answer::never && !std::is_same_v<C, Hello>) {
      EXPECT_NE(spell(command).find(" request:"), std::string::npos) << C::label;
    }
  });
}

TEST(Codec, WritesNothingWhereThereIsNoRoom) {
  const Launch launch{1, 2, 3, 4, 5, 6, 7, 8, 9, {}};
  std::vector<std::byte> bytes(encoded_size(launch) - 1, std::byte{0x5a});
  EXPECT_EQ(encode(launch, bytes), 0U);
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0x5a}),
            static_cast<std::ptrdiff_t>(bytes.size()));
}

TEST(Codec, RefusesEveryPrefixOfACommand) {
  for_each_command(3, [](const auto& command) {
    std::vector<std::byte> bytes(4096);
    const auto size = encode(command, bytes);
    for (std::size_t cut = 0; cut < size; ++cut) {
      // A copy of its own, so that the address sanitizer sees a read past the end.
      const std::vector<std::byte> part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(cut));
      EXPECT_FALSE(decode(part));
    }
  });
}

TEST(Codec, RefusesAnUnknownOpcodeByNumber) {
  std::vector<std::byte> bytes(16);
  encode(Goodbye{}, bytes);
  bytes[0] = std::byte{0xee};
  const auto decoded = decode(std::span(bytes).first(8));
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, ErrorCode::protocol_error);
  EXPECT_NE(decoded.error().cause.find("unknown (opcode 238)"), std::string::npos) << decoded.error().cause;
}

TEST(Codec, SurvivesThousandsOfMutations) {
  std::mt19937_64 random(17);
  std::size_t refused = 0, taken = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    for_each_command(seed, [&](const auto& command) {
      std::vector<std::byte> bytes(4096);
      bytes.resize(encode(command, bytes));
      for (std::uint64_t flips = random() % 6 + 1; flips-- > 0;)
        bytes[random() % bytes.size()] ^= static_cast<std::byte>(random());
      if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
      const std::vector<std::byte> exact(bytes);
      if (const auto size = command_size(exact); size) {
        ASSERT_LE(*size, exact.size());
      }
      const auto decoded = decode(exact);
      decoded ? ++taken : ++refused;
      if (decoded)
        std::visit(
            [&](const auto& c) {
              if constexpr (!std::is_same_v<std::decay_t<decltype(c)>, std::monostate>) (void)spell(c);
            },
            *decoded);
    });
  }
  EXPECT_GT(refused, 500U);
  EXPECT_GT(taken, 500U);
}

}  // namespace
}  // namespace cenote::pool::remote
