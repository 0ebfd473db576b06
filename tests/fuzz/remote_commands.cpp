// Commands of the remote-CUDA protocol, as a worker takes them out of a batch: whatever the bytes are,
// decoding ends, reads nothing outside of them, and what it accepts is encoded to the same bytes.
#include <algorithm>

#include "pool/remote/codec.h"
#include "tests/fuzz/fuzzer.h"

namespace cenote::fuzz {
namespace {

using namespace cenote::pool::remote;

struct AnyValue {
  template <class T>
  void operator()(const char*, T& value) const {
    if constexpr (std::is_same_v<T, Blob>)
      value = as_bytes("twelve bytes");
    else if constexpr (std::is_same_v<T, Text>)
      value = "text";
    else
      value = static_cast<T>(7);
  }
};

template <class C>
void append_one(std::vector<Bytes>& to) {
  C command;
  visit_fields(command, AnyValue());
  Bytes bytes(encoded_size(command));
  require(encode(command, bytes) == bytes.size(), "a command fits the size that was computed for it");
  to.push_back(std::move(bytes));
}

/// Everything but the padding, whose bytes say nothing.
void same_again(std::span<const std::byte> in) {
  (void)dispatch(in, [in](const auto& command) -> Result<void> {
    Bytes again(encoded_size(command));
    require(encode(command, again) == in.size(), "what was decoded is encoded to the same size");
    detail::Measure measure;
    visit_fields(command, measure);
    require(std::equal(again.begin(), again.begin() + static_cast<std::ptrdiff_t>(measure.bytes), in.begin()),
            "what was decoded is encoded to the same bytes");
    return {};
  });
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
#define CENOTE_FUZZ_SEED(Struct, name, answered, fields) append_one<Struct>(all);
  CENOTE_REMOTE_CALLS(CENOTE_FUZZ_SEED, CENOTE_REMOTE_NO_FIELD)
#undef CENOTE_FUZZ_SEED
  Bytes batch;
  for (const auto& one : all) batch.insert(batch.end(), one.begin(), one.end());
  all.push_back(std::move(batch));
  return all;
}

}  // namespace cenote::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cenote;
  auto rest = std::as_bytes(std::span(data, size));
  while (!rest.empty()) {
    const auto length = pool::remote::command_size(rest);
    if (!length) break;
    fuzz::require(*length != 0 && *length <= rest.size(), "a command lies within its batch");
    fuzz::same_again(rest.first(*length));
    rest = rest.subspan(*length);
  }
  return 0;
}
