#include "runtime/pmix.h"

#include <dlfcn.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "runtime/pmix_types.h"
#include "runtime/rank_name.h"

namespace cenote::launcher {

using pmix::Status;

struct PmixApi {
  Status (*init)(pmix::Process*, pmix::Info*, std::size_t) = nullptr;
  Status (*finalize)(const pmix::Info*, std::size_t) = nullptr;
  Status (*put)(std::uint8_t, const char*, pmix::Value*) = nullptr;
  Status (*commit)() = nullptr;
  Status (*get_nb)(const pmix::Process*, const char*, const pmix::Info*, std::size_t, pmix::Answer,
                   void*) = nullptr;
  const char* (*error_text)(Status) = nullptr;
  pmix::Process self{};

  [[nodiscard]] Error error(Status status, std::string stage) const {
    Error made{ErrorCode::system_error, std::move(stage), std::string("PMIx: ") + error_text(status)};
    made.native = status;
    return made;
  }
};

namespace {

/// Never closed: the library has threads of its own.
Result<std::unique_ptr<PmixApi>> load(const char* library) {
  const auto missing = [](std::string cause) {
    return fail(Error{ErrorCode::not_supported, "open PMIx", std::move(cause)}.fix(
        "apt-get install libpmix2, or set launcher to slurm"));
  };
  void* handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return missing(why != nullptr ? why : std::string(library) + " cannot be loaded");
  }
  auto api = std::make_unique<PmixApi>();
  const char* absent = nullptr;
  const auto need = [&](const char* name, auto& out) {
    out = reinterpret_cast<std::remove_reference_t<decltype(out)>>(::dlsym(handle, name));
    if (out == nullptr && absent == nullptr) absent = name;
  };
  need("PMIx_Init", api->init);
  need("PMIx_Finalize", api->finalize);
  need("PMIx_Put", api->put);
  need("PMIx_Commit", api->commit);
  need("PMIx_Get_nb", api->get_nb);
  need("PMIx_Error_string", api->error_text);
  if (absent == nullptr) return api;
  ::dlclose(handle);
  return missing(std::string(library) + " has no function " + absent);
}

/// A question to the server. Its two owners are who waits, and PMIx, which may answer after that one has
/// gone.
struct Question {
  std::mutex mutex;
  std::condition_variable answered;
  bool done = false;
  Status status = pmix::success;
  pmix::Type type{};
  std::uint32_t number = 0;
  char text[4096] = "";
};

/// On a thread of PMIx's, which owns `value`.
void take_answer(Status status, pmix::Value* value, void* owner) {
  const std::unique_ptr<std::shared_ptr<Question>> mine(static_cast<std::shared_ptr<Question>*>(owner));
  Question& question = **mine;
  const std::lock_guard lock(question.mutex);
  question.status = status;
  if (status == pmix::success && value != nullptr) {
    question.type = value->type;
    if (value->type == pmix::Type::uint32) question.number = value->data.uint32;
    if (value->type == pmix::Type::text && value->data.text != nullptr)
      std::strncpy(question.text, value->data.text, sizeof question.text - 1);
  }
  question.done = true;
  question.answered.notify_all();
}

/// Waits for the answer to one question.
Result<std::shared_ptr<Question>> ask_once(const PmixApi& api, std::uint32_t rank, const char* key,
                                           const std::string& stage, Deadline deadline) {
  auto process = api.self;
  process.rank = rank;
  auto question = std::make_shared<Question>();
  auto theirs = std::make_unique<std::shared_ptr<Question>>(question);
  const auto asked = api.get_nb(&process, key, nullptr, 0, take_answer, theirs.get());
  if (asked != pmix::success) return fail(api.error(asked, stage));
  (void)theirs.release();  // take_answer has it
  std::unique_lock lock(question->mutex);
  const auto latest = Clock::now() + deadline.left();
  if (!question->answered.wait_until(lock, latest, [&] { return question->done; }))
    return fail(ErrorCode::deadline_exceeded, stage, "PMIx's server has not said until the deadline");
  if (question->status != pmix::success) return fail(api.error(question->status, stage));
  return question;
}

/// mpirun's server says after 2 s that what is not there yet has timed out: then the question is put again.
Result<std::shared_ptr<Question>> ask(const PmixApi& api, std::uint32_t rank, const char* key,
                                      const std::string& stage, Deadline deadline) {
  constexpr auto pause = std::chrono::milliseconds(10);
  for (;;) {
    auto question = ask_once(api, rank, key, stage, deadline);
    if (question) return question;
    const auto native = question.error().native;
    if (native != pmix::timed_out && native != pmix::not_found) return question;
    if (deadline.left() <= pause) {
      auto error = std::move(question).error();
      error.code = ErrorCode::deadline_exceeded;
      return fail(std::move(error));
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

Pmix::Pmix(std::unique_ptr<PmixApi> api) : api_(std::move(api)) {}

Result<std::unique_ptr<Pmix>> Pmix::open(const char* library) {
  CENOTE_ASSIGN(auto api, load(library));
  const auto status = api->init(&api->self, nullptr, 0);
  if (status != pmix::success)
    return fail(Error(api->error(status, "reach the PMIx server that started this process"))
                    .fix("is mpirun, or srun --mpi=pmix, still running?"));
  return std::unique_ptr<Pmix>(new Pmix(std::move(api)));
}

Pmix::~Pmix() { (void)api_->finalize(nullptr, 0); }

std::uint32_t Pmix::rank() const { return api_->self.rank; }
std::string Pmix::job() const { return api_->self.job; }

Result<std::uint32_t> Pmix::size(Deadline deadline) const {
  const auto* const stage = "ask PMIx how large the job is";
  CENOTE_ASSIGN(const auto question, ask_once(*api_, pmix::whole_job, pmix::job_size, stage, deadline));
  if (question->type == pmix::Type::uint32) return question->number;
  return fail(ErrorCode::protocol_error, stage, "what the server says is no number");
}

Result<std::string> Pmix::local_peers(Deadline deadline) const {
  const auto* const stage = "ask PMIx for the ranks of this machine";
  CENOTE_ASSIGN(const auto question, ask_once(*api_, pmix::whole_job, pmix::local_peers, stage, deadline));
  if (question->type == pmix::Type::text) return std::string(question->text);
  return fail(ErrorCode::protocol_error, stage, "what the server says is no text");
}

Result<void> Pmix::publish(const std::string& key, std::string text) {
  pmix::Value value{pmix::Type::text, {text.data()}};
  const auto put = api_->put(pmix::to_all, key.c_str(), &value);
  if (put != pmix::success) return fail(api_->error(put, "publish " + key + " by PMIx"));
  const auto committed = api_->commit();
  if (committed != pmix::success) return fail(api_->error(committed, "publish " + key + " by PMIx"));
  return {};
}

Result<std::string> Pmix::fetch(std::uint32_t rank, const std::string& key, Deadline deadline) const {
  const auto stage = "fetch " + key + " of " + rank_name(rank) + " by PMIx";
  CENOTE_ASSIGN(const auto question, ask(*api_, rank, key.c_str(), stage, deadline));
  if (question->type != pmix::Type::text)
    return fail(ErrorCode::protocol_error, stage, "what it has published is no text");
  return std::string(question->text);
}

}  // namespace cenote::launcher
