// verbs_writes COUNT [DEPTH]: puts COUNT times 8 bytes over the verbs transport to an endpoint of its own, at
// most DEPTH at a time, each completion taken: the counterpart of perftest's write loop, for counting
// instructions (bench_instructions). Run over perf/at_once, where a write is done at once.
#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "transports/verbs/verbs.h"

namespace cenote::perf {
namespace {

using transport::Completion;
using transport::Endpoint;
using transport::Transport;

constexpr auto patience = std::chrono::seconds(60);

struct Pair {
  std::unique_ptr<Transport> from, to;
  std::unique_ptr<Endpoint> writer, target;
  std::unique_ptr<transport::Region> memory;
};

Result<Pair> connect() {
  Pair pair;
  CENOTE_ASSIGN(pair.from, transport::make_verbs_transport({}));
  CENOTE_ASSIGN(pair.to, transport::make_verbs_transport({}));
  CENOTE_ASSIGN(pair.memory, pair.to->allocate(4096));
  const Deadline deadline = Deadline::in(patience);
  CENOTE_ASSIGN(pair.writer, pair.from->connect(pair.to->address(), "target", 0, deadline));
  CENOTE_ASSIGN(pair.target, pair.to->connect(pair.from->address(), "writer", 0, deadline));
  const std::uint64_t word = 0;
  CENOTE_TRY(pair.writer->put(std::as_bytes(std::span(&word, 1)), {&pair.memory->key(), 0},
                              transport::no_signal, 0));
  Completion done;
  while (pair.writer->poll(std::span(&done, 1)) == 0) {
    pair.from->progress();
    pair.to->progress();
    if (deadline.passed())
      return fail(ErrorCode::deadline_exceeded, "connect", "the first write is not done");
  }
  if (done.error) return fail(std::move(*done.error));
  return pair;
}

/// How perftest writes: fills the queue, then takes what is done, sixteen at a time.
Result<void> write(Pair& pair, std::uint64_t count, std::uint64_t depth) {
  const std::uint64_t word = 1;
  const auto bytes = std::as_bytes(std::span(&word, 1));
  Endpoint& writer = *pair.writer;
  const transport::RemoteSlice where{&pair.memory->key(), 0};
  Completion done[16];
  std::uint64_t posted = 0, finished = 0;
  while (finished < count) {
    for (const std::uint64_t end = std::min(count, finished + depth); posted < end; ++posted) {
      if (auto put = writer.put(bytes, where, transport::no_signal, posted); !put) return put;
    }
    pair.from->progress();
    const std::size_t taken = writer.poll(done);
    for (const Completion& one : std::span(done).first(taken)) {
      if (one.error) return fail(*one.error);
    }
    finished += taken;
  }
  return {};
}

int run(int count, char** words) {
  const std::uint64_t writes = count > 1 ? std::strtoull(words[1], nullptr, 10) : 0;
  const std::uint64_t depth = count > 2 ? std::strtoull(words[2], nullptr, 10) : 128;
  if (writes == 0 || depth == 0 || depth > 512) {
    std::cerr << "verbs_writes COUNT [DEPTH up to 512]\n";
    return 2;
  }
  auto pair = connect();
  auto wrote = pair ? write(*pair, writes, depth) : fail(pair.error());
  if (wrote) return 0;
  std::cerr << "verbs_writes: " << wrote.error().message() << "\n";
  return 1;
}

}  // namespace
}  // namespace cenote::perf

int main(int count, char** words) { return cenote::perf::run(count, words); }
