// The part of the C interface that asks a launcher who this process is.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "collectives/c_api.h"
#include "runtime/launcher_meeting.h"
#include "runtime/settings.h"

using cenote::Deadline;
using cenote::Result;
using cenote::Settings;
using cenote::c_api::bad;
using cenote::c_api::create_comm;
using cenote::c_api::guarded;
using cenote::c_api::in_its_process;
using cenote::c_api::known_part;
using cenote::collectives::CommunicatorOptions;
using cenote::launcher::ask_place;
using cenote::launcher::Meeting;
using cenote::launcher::MeetingOptions;

namespace {

/// The settings, with what the caller says instead of them.
Result<Settings> settings_with(const char* launcher, std::uint32_t port) {
  CENOTE_ASSIGN(auto settings, Settings::load());
  if (launcher != nullptr) CENOTE_TRY(settings.set("launcher", launcher, "the caller"));
  if (port != 0) CENOTE_TRY(settings.set("launcher_port", std::to_string(port), "the caller"));
  return settings;
}

CommunicatorOptions wanted_by(const cenote_launch_options& options) {
  CommunicatorOptions wanted;
  wanted.check = options.no_check == 0;
  if (options.algorithm != nullptr) wanted.algorithm = options.algorithm;
  if (options.init_timeout_ms != 0) wanted.init_timeout = std::chrono::milliseconds(options.init_timeout_ms);
  if (options.operation_timeout_ms != 0)
    wanted.operation_timeout = std::chrono::milliseconds(options.operation_timeout_ms);
  return wanted;
}

Result<std::unique_ptr<cenote_comm>> create_launched(cenote_context& context,
                                                     const cenote_launch_options& options) {
  CENOTE_ASSIGN(const auto settings, settings_with(options.launcher, options.port));
  auto wanted = wanted_by(options);
  const auto deadline = Deadline::in(wanted.init_timeout);
  const std::lock_guard lock(context.launcher);
  CENOTE_ASSIGN(const auto place,
                ask_place(settings.text("launcher"), cenote::launcher_environment(), deadline, context.pmix));
  MeetingOptions how;
  if (options.group != nullptr) how.group = options.group;
  if (context.host_given) how.host = context.fabric.tcp_host;
  how.port = static_cast<std::uint16_t>(settings.uinteger("launcher_port"));
  CENOTE_ASSIGN(const Meeting meeting, cenote::launcher::meet(place, context.pmix.get(), how, deadline));
  wanted.rank = place.rank;
  wanted.size = place.ranks;
  wanted.id = meeting.id;
  wanted.fabric = context.fabric;
  wanted.fabric.tcp_host = meeting.host;
  wanted.init_timeout = deadline.left();
  return create_comm(context, wanted);
}

}  // namespace

extern "C" {

cenote_status cenote_launch_find(cenote_context* context, const char* launcher, cenote_launch* launch) {
  return guarded([&]() -> Result<void> {
    constexpr const char* stage = "find this process's place in its group";
    if (context == nullptr || launch == nullptr)
      return bad(stage, "the context or the place to put it is NULL");
    CENOTE_TRY(in_its_process(*context, stage));
    const auto room = launch->size;
    if (room < sizeof(std::size_t)) return bad(stage, "the struct's size is not set");
    CENOTE_ASSIGN(const auto settings, settings_with(launcher, 0));
    const std::lock_guard lock(context->launcher);
    CENOTE_ASSIGN(const auto place, ask_place(settings.text("launcher"), cenote::launcher_environment(),
                                              Deadline::in(std::chrono::seconds(30)), context->pmix));
    cenote_launch found{room, place.rank, place.ranks, place.local_rank, place.local_ranks, ""};
    const auto name = to_string(place.kind);
    name.copy(found.launcher, sizeof found.launcher - 1);
    std::memcpy(launch, &found, std::min(room, sizeof found));
    return {};
  });
}

cenote_status cenote_comm_create_launched(cenote_context* context, const cenote_launch_options* options,
                                          cenote_comm** comm) {
  return guarded([&]() -> Result<void> {
    constexpr const char* stage = "create a communicator";
    if (context == nullptr || comm == nullptr)
      return bad(stage, "the context or the place to put it is NULL");
    *comm = nullptr;
    CENOTE_TRY(in_its_process(*context, stage));
    CENOTE_ASSIGN(const auto known, known_part(options, stage));
    CENOTE_ASSIGN(auto made, create_launched(*context, known));
    *comm = made.release();
    return {};
  });
}

}  // extern "C"
