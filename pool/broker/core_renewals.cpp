// Renewals: those that wait for the store at once are written at once.
#include <algorithm>
#include <utility>

#include "pool/broker/core.h"

namespace cenote::pool {

Result<LeaseView> BrokerCore::renew(const std::string& lease_id, std::int64_t ttl_ms, const Proof& proof) {
  CENOTE_ASSIGN(const auto length, ttl(ttl_ms));
  Renewal mine{lease_id, length, proof};
  {
    // What is wrong already need not wait to be told so.
    const std::lock_guard seen(seen_mutex_);
    if (auto good = renewal_command(seen_, mine, clock_.unix_ms()); !good)
      return fail(std::move(good).error());
  }
  {
    const std::lock_guard waiting(renewals_mutex_);
    renewals_.push_back(&mine);
  }
  // Whoever has the store next writes for all who wait by then.
  const std::lock_guard lock(mutex_);
  if (!mine.done) commit_renewals();
  return std::move(mine.answer);
}

std::size_t BrokerCore::renewals_waiting() const {
  const std::lock_guard waiting(renewals_mutex_);
  return renewals_.size();
}

Result<Command> BrokerCore::renewal_command(const State& state, const Renewal& renewal, std::int64_t now_ms) {
  const auto& leases = state.leases;
  const auto found = leases.find(renewal.lease_id);
  if (found == leases.end()) {
    return fail(
        Error{ErrorCode::not_found, "renew lease " + renewal.lease_id, "there is no such lease: it has ended"}
            .fix("lease again"));
  }
  CENOTE_TRY(check_proof(found->second.client_key, "renew", renewal.lease_id, kBrokerAudience, renewal.proof,
                         now_ms));
  return Command(command::Renew{renewal.lease_id,
                                std::max(found->second.expires_ms, now_ms + renewal.length_ms),
                                renewal.proof.unix_ms});
}

void BrokerCore::commit_renewals() {
  std::vector<Renewal*> waiting;
  {
    const std::lock_guard lock(renewals_mutex_);
    waiting.swap(renewals_);
  }
  notice_absence();
  const auto now = clock_.unix_ms();
  std::vector<Command> commands;
  std::vector<Renewal*> together;
  for (auto* renewal : waiting) {
    renewal->done = true;
    auto command = renewal_command(journal_.state(), *renewal, now);
    if (command) {
      commands.push_back(std::move(*command));
      together.push_back(renewal);
    } else {
      renewal->answer = fail(std::move(command).error());
    }
  }
  if (commands.empty()) return;
  const auto failures = journal_.store_failures();
  auto all = commit(commands);
  for (std::size_t i = 0; i < together.size(); ++i) {
    // One of them is refused by the state, and with it all: each alone, then.
    const bool alone = !all && together.size() > 1 && journal_.store_failures() == failures;
    const auto done = alone ? commit(std::span(&commands[i], 1)) : all;
    together[i]->answer = done ? signed_view(journal_.state(), together[i]->lease_id) : fail(done.error());
  }
}

}  // namespace cenote::pool
