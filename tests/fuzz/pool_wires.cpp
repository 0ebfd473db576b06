// What the pool's processes say to each other beside gRPC and the command rings: the library and its helper,
// an agent and its worker, a lease as a file. The first byte says whose. What is taken is written and read
// the same again.
#include "pool/agent/worker_wire.h"
#include "pool/client/lease_file.h"
#include "pool/dropin/helper_wire.h"
#include "pool/dropin/session_wire.h"
#include "tests/fuzz/fuzzer.h"

namespace cenote::fuzz {
namespace {

using namespace pool;  // NOLINT(google-build-using-namespace)

enum class Wire : std::uint8_t { request, reply, session, setup, message, lease_file, count };

template <class Decode, class Encode>
void there_and_back(std::span<const std::byte> input, Decode decode, Encode encode) {
  const auto read = decode(input);
  if (!read) {
    require(!read.error().cause.empty(), "an error says what is wrong");
    return;
  }
  const auto written = encode(*read);
  const auto again = decode(written);
  require(again.has_value(), "what was read is taken again");
  require(encode(*again) == written, "and is the same");
}

void run(std::span<const std::byte> input) {
  if (input.empty()) return;
  const auto wire = static_cast<Wire>(static_cast<std::uint8_t>(input[0]) % static_cast<int>(Wire::count));
  const auto bytes = input.subspan(1);
  switch (wire) {
    case Wire::request:
      return there_and_back(bytes, dropin::decode_request,
                            [](const dropin::Request& request) { return dropin::encode(request); });
    case Wire::reply:
      return there_and_back(bytes, dropin::decode_helper_reply,
                            [](const dropin::Reply& reply) { return dropin::encode(reply); });
    case Wire::session:
      if (const auto workers = dropin::decode_reply(bytes))
        require(dropin::encode_workers(*workers).size() <= bytes.size(), "nothing is made of nothing");
      return;
    case Wire::setup:
      return there_and_back(bytes, agent::decode_setup, agent::encode_setup);
    case Wire::message:
      return there_and_back(bytes, agent::decode_message, agent::encode_message);
    default:
      return there_and_back(
          bytes, [](std::span<const std::byte> text) { return client::decode_lease_file(as_text(text)); },
          [](const client::LeaseFile& file) {
            const auto text = client::encode_lease_file(file);
            const auto view = std::as_bytes(std::span(text));
            return Bytes(view.begin(), view.end());
          });
  }
}

Bytes seed(Wire wire, std::span<const std::byte> bytes) { return Writer().put(wire).raw(bytes).take(); }

}  // namespace

std::vector<Bytes> seeds() {
  const std::vector<remote::WorkerAddress> workers(1);
  dropin::LeaseReply granted{.lease = 3, .id = "lease-3", .gpus = {{"GPU-1", "H200", "here", 1U << 20U}}};
  client::LeaseFile file;
  file.broker = "head:4700";
  file.lease.devices.resize(1);
  const auto text = client::encode_lease_file(file);
  agent::WorkerMessage load;
  load.kind = agent::WorkerSays::load;
  load.use.resize(2);
  return {seed(Wire::request, dropin::encode(dropin::Request{1, 10, dropin::ConnectAsk{1, {"tls.dir=/t"}}})),
          seed(Wire::request, dropin::encode(dropin::Request{2, 10, dropin::LeaseAsk{}})),
          seed(Wire::request, dropin::encode(dropin::Request{3, 10, dropin::OpenAsk{1, Bytes(40)}})),
          seed(Wire::reply, dropin::encode(dropin::Reply{2, std::move(granted)})),
          seed(Wire::reply, dropin::encode(dropin::Reply{3, dropin::WorkersReply{workers}})),
          seed(Wire::session, dropin::encode_workers(workers)),
          seed(Wire::setup, agent::encode_setup({})),
          seed(Wire::message, agent::encode_message(load)),
          seed(Wire::lease_file, std::as_bytes(std::span(text)))};
}

}  // namespace cenote::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cenote::fuzz::run(std::as_bytes(std::span(data, size)));
  return 0;
}
