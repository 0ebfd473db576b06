// Encodings of states and commands. Each struct lists its fields once, for both directions.
#include <type_traits>

#include "pool/state/state.h"

namespace cenote::pool {
namespace {

constexpr std::uint16_t kStateFormat = 2;
constexpr std::uint16_t kCommandFormat = 1;

class Encoder {
 public:
  template <class... T>
  void operator()(const T&... values) {
    (one(values), ...);
  }
  Bytes take() { return out_.take(); }

 private:
  template <class T>
  void one(const T& value);
  Writer out_;
};

class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> bytes) : in_(bytes) {}
  template <class... T>
  void operator()(T&... values) {
    (one(values), ...);
  }
  [[nodiscard]] bool finished() const { return in_.finished() && !refused_; }
  void refuse() { refused_ = true; }

 private:
  template <class T>
  void one(T& value);
  /// Every element takes at least a byte: a count beyond what is left is nonsense, and allocates nothing.
  std::size_t count() {
    const auto claimed = in_.get<std::uint32_t>();
    if (claimed <= in_.left()) return claimed;
    refused_ = true;
    return 0;
  }
  [[nodiscard]] bool broken() const { return in_.bad() || refused_; }

  Reader in_;
  bool refused_ = false;
};

// Fields, in the order of the bytes.
template <class Ar, class T>
void fields(Ar& ar, T& v) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, DeviceSpec>) {
    ar(v.uuid, v.model, v.memory_bytes, v.ordinal);
  } else if constexpr (std::is_same_v<Plain, Share>) {
    ar(v.device, v.agent, v.memory_bytes, v.compute_millis, v.epoch, v.held);
  } else if constexpr (std::is_same_v<Plain, Agent>) {
    ar(v.endpoint, v.instance, v.alive, v.devices);
  } else if constexpr (std::is_same_v<Plain, Device>) {
    ar(v.spec, v.agent, v.present, v.epoch, v.memory_held, v.compute_held, v.holders);
  } else if constexpr (std::is_same_v<Plain, Holder>) {
    ar(v.lease, v.epoch);
  } else if constexpr (std::is_same_v<Plain, Lease>) {
    ar(v.request_id, v.client, v.client_key, v.note, v.reason, v.granted_ms, v.expires_ms, v.ttl_ms,
       v.hold_ms, v.fence_ms, v.proof_ms, v.shares, v.ended, v.cause, v.end_text);
  } else if constexpr (std::is_same_v<Plain, GrantedRequest>) {
    ar(v.lease_id, v.client_key);
  } else if constexpr (std::is_same_v<Plain, State>) {
    ar(v.term, v.grace_ms, v.drift_ms, v.agents, v.devices, v.leases, v.requests, v.ended_requests);
  } else if constexpr (std::is_same_v<Plain, command::StartTerm>) {
    ar(v.term, v.grace_ms, v.drift_ms);
  } else if constexpr (std::is_same_v<Plain, command::RegisterAgent>) {
    ar(v.name, v.endpoint, v.instance, v.devices);
  } else if constexpr (std::is_same_v<Plain, command::LoseAgent> ||
                       std::is_same_v<Plain, command::RecoverAgent>) {
    ar(v.name);
  } else if constexpr (std::is_same_v<Plain, command::Grant>) {
    ar(v.lease_id, v.request_id, v.client, v.client_key, v.expires_ms, v.note, v.reason, v.shares);
  } else if constexpr (std::is_same_v<Plain, command::Renew>) {
    ar(v.lease_id, v.expires_ms, v.proof_ms);
  } else if constexpr (std::is_same_v<Plain, command::End>) {
    ar(v.lease_id, v.cause, v.text, v.proof_ms);
  } else if constexpr (std::is_same_v<Plain, command::Confirm>) {
    ar(v.lease_id, v.agent);
  } else {
    static_assert(std::is_same_v<Plain, command::Reclaim>);
    ar(v.lease_id);
  }
}

template <class T>
constexpr bool is_pair = false;
template <class A, class B>
constexpr bool is_pair<std::pair<A, B>> = true;
template <class T>
constexpr bool is_map = false;
template <class K, class V>
constexpr bool is_map<std::map<K, V>> = true;
template <class T>
concept Sequence = requires(T& t) { t.emplace_back(); } && !std::is_same_v<T, std::string>;

template <class T>
void Encoder::one(const T& value) {
  if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    out_.put(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    out_.text(value);
  } else if constexpr (std::is_same_v<T, PublicKey>) {
    out_.raw(std::as_bytes(std::span(value)));
  } else if constexpr (is_pair<T>) {
    (*this)(value.first, value.second);
  } else if constexpr (is_map<T> || Sequence<T>) {
    out_.put(static_cast<std::uint32_t>(value.size()));
    for (const auto& element : value) one(element);
  } else {
    fields(*this, value);
  }
}

template <class T>
void Decoder::one(T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    const auto byte = in_.get<std::uint8_t>();
    if (byte > 1) refuse();
    value = byte == 1;
  } else if constexpr (std::is_same_v<T, EndCause>) {
    const auto byte = in_.get<std::uint8_t>();
    if (byte > static_cast<std::uint8_t>(EndCause::failed)) refuse();
    value = static_cast<EndCause>(byte);
  } else if constexpr (std::is_arithmetic_v<T>) {
    value = in_.get<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    value = in_.text();
  } else if constexpr (std::is_same_v<T, PublicKey>) {
    const auto bytes = in_.raw(value.size());
    if (!in_.bad()) std::memcpy(value.data(), bytes.data(), value.size());
  } else if constexpr (is_pair<T>) {
    (*this)(value.first, value.second);
  } else if constexpr (is_map<T>) {
    for (auto left = count(); left > 0 && !broken(); --left) {
      std::pair<typename T::key_type, typename T::mapped_type> element;
      one(element);
      if (!value.empty() && !(value.rbegin()->first < element.first)) refuse();
      value.insert_or_assign(value.end(), std::move(element.first), std::move(element.second));
    }
  } else if constexpr (Sequence<T>) {
    for (auto left = count(); left > 0 && !broken(); --left) one(value.emplace_back());
  } else {
    fields(*this, value);
  }
}

template <std::size_t Index = 0>
bool decode_alternative(std::size_t index, Decoder& in, Command& command) {
  if constexpr (Index == std::variant_size_v<Command>) {
    return false;
  } else {
    if (index != Index) return decode_alternative<Index + 1>(index, in, command);
    in(command.emplace<Index>());
    return true;
  }
}

}  // namespace

Bytes encode(const State& state) {
  Encoder out;
  out(kStateFormat, state);
  return out.take();
}

Bytes encode(const Command& command) {
  Encoder out;
  out(kCommandFormat, static_cast<std::uint8_t>(command.index()));
  std::visit([&](const auto& alternative) { out(alternative); }, command);
  return out.take();
}

Result<State> decode_state(std::span<const std::byte> bytes) {
  Decoder in(bytes);
  std::uint16_t format = 0;
  in(format);
  if (format != kStateFormat) {
    return fail(ErrorCode::protocol_error, "decode the broker's state",
                "format " + std::to_string(format) + ", this build knows " + std::to_string(kStateFormat));
  }
  State state;
  in(state);
  if (!in.finished())
    return fail(ErrorCode::protocol_error, "decode the broker's state", "its bytes make no sense");
  return state;
}

Result<Command> decode_command(std::span<const std::byte> bytes) {
  Decoder in(bytes);
  std::uint16_t format = 0;
  std::uint8_t index = 0;
  in(format, index);
  if (format != kCommandFormat) {
    return fail(ErrorCode::protocol_error, "decode a command",
                "format " + std::to_string(format) + ", this build knows " + std::to_string(kCommandFormat));
  }
  Command command;
  if (!decode_alternative(index, in, command) || !in.finished()) {
    return fail(ErrorCode::protocol_error, "decode a command", "its bytes make no sense");
  }
  return command;
}

}  // namespace cenote::pool
