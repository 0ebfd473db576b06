#include "transports/fabric.h"

#include <algorithm>

#include "runtime/settings.h"
#include "transports/shm/shm.h"
#include "transports/tcp/tcp.h"
#include "transports/ucx/ucx.h"
#include "transports/verbs/verbs.h"

namespace cenote::transport {
namespace {

struct Named {
  std::string name;
  Bytes address;
};

/// A fabric's address: its transports in its order of preference.
Bytes pack(std::span<const Named> transports) {
  Writer out;
  out.put(static_cast<std::uint8_t>(transports.size()));
  for (const Named& transport : transports) out.text(transport.name).blob(transport.address);
  return out.take();
}

Result<std::vector<Named>> unpack(std::span<const std::byte> bytes) {
  Reader in(bytes);
  std::vector<Named> out(in.get<std::uint8_t>());
  for (Named& transport : out) {
    transport.name = in.text();
    const auto address = in.blob();
    transport.address.assign(address.begin(), address.end());
  }
  if (!in.finished())
    return fail(ErrorCode::invalid_argument, "read peer address", "not an address of a fabric");
  return out;
}

using Made = Result<std::unique_ptr<Transport>>;

Made make_shm(const FabricOptions& /*options*/) { return make_shm_transport(); }

Made make_tcp(const FabricOptions& options) {
  TcpOptions tcp;
  tcp.host = options.tcp_host;
  return make_tcp_transport(tcp);
}

Made make_verbs(const FabricOptions& options) {
  VerbsOptions verbs = options.verbs;
  verbs.host = options.tcp_host;
  return make_verbs_transport(verbs);
}

Made make_ucx(const FabricOptions& options) {
  UcxOptions ucx = options.ucx;
  ucx.host = options.tcp_host;
  return make_ucx_transport(ucx);
}

struct Maker {
  std::string_view name;
  Made (*make)(const FabricOptions& options);
};
constexpr Maker makers[] = {{"shm", make_shm}, {"verbs", make_verbs}, {"tcp", make_tcp}, {"ucx", make_ucx}};

Made make_named(const std::string& name, const FabricOptions& options) {
  std::string known;
  for (const Maker& maker : makers) {
    if (maker.name == name) return maker.make(options);
    known += (known.empty() ? "" : ", ") + std::string(maker.name);
  }
  return fail(
      Error{ErrorCode::invalid_argument, "start transports", "there is no transport named '" + name + "'"}
          .fix("known ones: " + known));
}

class SimpleFabric final : public Fabric {
 public:
  Result<void> start(const FabricOptions& options) {
    spin_ = options.spin;
    std::string remedy;
    for (const std::string& name : options.transports) {
      if (std::count(options.transports.begin(), options.transports.end(), name) > 1)
        return fail(ErrorCode::invalid_argument, "start transports", "'" + name + "' is named twice");
      auto made = make_named(name, options);
      if (made) {
        owned_.push_back(options.wrap ? options.wrap(std::move(*made)) : std::move(*made));
        continue;
      }
      if (made.error().code != ErrorCode::not_supported) return fail(std::move(made).error());
      missing_.push_back({name, made.error().cause});
      remedy = made.error().remedy;
    }
    if (owned_.empty() && !missing_.empty()) {
      std::string why;
      for (const Missing& missing : missing_)
        why += (why.empty() ? "" : "; ") + missing.name + ": " + missing.cause;
      return fail(Error{ErrorCode::not_supported, "start transports", std::move(why)}.fix(std::move(remedy)));
    }
    std::vector<Named> names;
    for (const auto& transport : owned_) {
      all_.push_back(transport.get());
      names.push_back({std::string(transport->name()), transport->address()});
    }
    address_ = pack(names);
    return {};
  }

  [[nodiscard]] const Bytes& address() const override { return address_; }
  [[nodiscard]] Result<std::string> choice(std::span<const std::byte> peer_address) const override {
    CENOTE_ASSIGN(const Choice chosen, choose(peer_address));
    return chosen.reason;
  }
  Result<Link> connect(std::span<const std::byte> peer_address, std::string peer_name, std::uint32_t channel,
                       Deadline deadline) override {
    auto chosen = choose(peer_address);
    if (!chosen) return fail(std::move(chosen).error().with(std::move(peer_name)));
    Link link;
    link.transport = chosen->transport;
    link.reason = std::move(chosen->reason);
    CENOTE_ASSIGN(link.endpoint,
                  chosen->transport->connect(chosen->address, std::move(peer_name), channel, deadline));
    return link;
  }
  [[nodiscard]] std::span<Transport* const> transports() const override { return all_; }
  bool progress() override {
    bool any = false;
    for (Transport* transport : all_) any = transport->progress() || any;
    return any;
  }
  Result<void> wait(Deadline deadline, const CancelFlag* cancel, std::string_view what) override {
    return transport::wait(all_, deadline, cancel, what, spin_);
  }
  void interrupt() override {
    for (Transport* transport : all_) transport->interrupt();
  }

 private:
  struct Choice {
    Transport* transport = nullptr;
    Bytes address;
    std::string reason;
  };

  struct Missing {
    std::string name, cause;
  };
  [[nodiscard]] std::string why_missing(const std::string& name) const {
    for (const Missing& missing : missing_) {
      if (missing.name == name) return missing.cause;
    }
    return "this side has it not";
  }

  /// Both sides go through the list of the side whose address is the lesser one, so they choose alike even
  /// when they prefer differently. reachable() is symmetric by its contract.
  [[nodiscard]] Result<Choice> choose(std::span<const std::byte> peer_address) const {
    CENOTE_ASSIGN(const std::vector<Named> theirs, unpack(peer_address));
    CENOTE_ASSIGN(const std::vector<Named> ours, unpack(address_));
    const bool our_order = std::lexicographical_compare(address_.begin(), address_.end(),
                                                        peer_address.begin(), peer_address.end());
    std::string refused, remedy;
    for (const Named& candidate : our_order ? ours : theirs) {
      const auto mine = std::find_if(all_.begin(), all_.end(),
                                     [&](const Transport* t) { return t->name() == candidate.name; });
      const auto other = std::find_if(theirs.begin(), theirs.end(),
                                      [&](const Named& t) { return t.name == candidate.name; });
      std::string why;
      if (mine == all_.end() || other == theirs.end()) {
        why = mine == all_.end() ? why_missing(candidate.name) : "the peer has it not";
      } else if (auto reached = (*mine)->reachable(other->address); !reached) {
        why = reached.error().cause;
        remedy += (remedy.empty() || reached.error().remedy.empty() ? "" : "; ") + reached.error().remedy;
      } else {
        std::string reason =
            candidate.name + (candidate.name == "shm" ? ": same boot id and namespaces" : "");
        if (!refused.empty()) reason += ": " + refused;
        return Choice{*mine, other->address, std::move(reason)};
      }
      refused += (refused.empty() ? "" : "; ") + candidate.name + " refused: " + why;
    }
    return fail(Error{ErrorCode::not_supported, "reach peer",
                      refused.empty() ? "the two sides share no transport" : refused}
                    .fix(std::move(remedy)));
  }

  std::vector<std::unique_ptr<Transport>> owned_;
  std::vector<Transport*> all_;
  std::vector<Missing> missing_;
  Bytes address_;
  Clock::duration spin_{};
};

}  // namespace

FabricOptions fabric_options(const Settings& settings) {
  FabricOptions options;
  options.transports = settings.list("transports");
  options.tcp_host = settings.text("tcp.host");
  options.spin = settings.duration("wait.spin");
  options.ucx.tls = settings.text("ucx.tls");
  VerbsOptions& verbs = options.verbs;
  verbs.devices = settings.list("verbs.devices");
  verbs.rails = static_cast<std::uint32_t>(settings.uinteger("verbs.rails"));
  verbs.mtu = static_cast<std::uint32_t>(settings.uinteger("verbs.mtu"));
  verbs.gid_index = static_cast<int>(settings.integer("verbs.gid_index"));
  verbs.pkey_index = static_cast<std::uint16_t>(settings.uinteger("verbs.pkey_index"));
  verbs.near = settings.text("verbs.near");
  verbs.path_bits = static_cast<int>(settings.integer("verbs.path_bits"));
  verbs.service_level = static_cast<std::uint8_t>(settings.uinteger("verbs.service_level"));
  verbs.traffic_class = static_cast<std::uint8_t>(settings.uinteger("verbs.traffic_class"));
  verbs.timeout = static_cast<std::uint8_t>(settings.uinteger("verbs.timeout"));
  verbs.retries = static_cast<std::uint8_t>(settings.uinteger("verbs.retries"));
  verbs.connections = static_cast<std::uint32_t>(settings.uinteger("verbs.connections"));
  verbs.relaxed_ordering = settings.boolean("verbs.relaxed_ordering");
  verbs.gpu_memory = settings.list("verbs.gpu_memory");
  return options;
}

Result<std::unique_ptr<Fabric>> Fabric::create(const FabricOptions& options) {
  auto fabric = std::make_unique<SimpleFabric>();
  CENOTE_TRY(fabric->start(options));
  return fabric;
}

}  // namespace cenote::transport
