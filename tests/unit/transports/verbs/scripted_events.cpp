// Completion queues, their channels, and asynchronous events.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/unit/transports/verbs/scripted_core.h"

namespace cenote::transport::verbs::test::detail {

Tokens::Tokens() : fd_(eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)) {}
Tokens::~Tokens() { close(); }

void Tokens::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Tokens::add() {
  const std::uint64_t one = 1;
  if (fd_ >= 0) [[maybe_unused]]
    const ssize_t wrote = ::write(fd_, &one, sizeof one);
}

void Tokens::take() {
  std::uint64_t one = 0;
  if (fd_ >= 0) [[maybe_unused]]
    const ssize_t read = ::read(fd_, &one, sizeof one);
}

namespace {

/// Takes the next of `queue`, waiting for it where the descriptor blocks. Tokens and elements are added and
/// taken together under the lock. Null, and errno, when there is none.
template <class Source, class T>
bool take(std::unique_lock<std::mutex>& lock, Source& source, std::deque<T>& queue, T* out) {
  for (;;) {
    if (!queue.empty()) {
      *out = queue.front();
      queue.pop_front();
      source.tokens.take();
      return true;
    }
    if (source.closed) return errno = EIO, false;
    const int fd = source.tokens.fd();
    if ((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0) return errno = EAGAIN, false;
    lock.unlock();
    pollfd wait{fd, POLLIN, 0};
    const int ready = ::poll(&wait, 1, -1);
    if (ready < 0) return false;  // EINTR, as read() would
    lock.lock();
  }
}

int* unacked(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return &static_cast<Cq*>(event.element.cq)->unacked_async;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_COMM_EST:
      return &static_cast<Qp*>(event.element.qp)->unacked_async;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return &static_cast<Srq*>(event.element.srq)->unacked_async;
    default:
      return nullptr;
  }
}

int get_async_event(ibv_context* opaque, ibv_async_event* out) {
  auto* context = static_cast<Context*>(opaque);
  Entry entry(Call::get_async_event, context);
  // Of a removed device the last events can still be read.
  const bool removed = entry.error == EIO && context->alive && !context->process->killed;
  if (entry.error != 0 && !removed) return errno = entry.error, -1;
  if (!take(entry.lock, *context, context->events, out)) return -1;
  if (int* count = unacked(*out)) ++*count;
  return 0;
}

void ack_async_event(ibv_async_event* event) {
  // The element may be a device's or a port's: then it names no object, and nothing waits for the word.
  int* count = unacked(*event);
  if (count == nullptr) return;
  Node* node = nullptr;
  if (event->event_type == IBV_EVENT_CQ_ERR)
    node = static_cast<Cq*>(event->element.cq);
  else if (event->event_type == IBV_EVENT_SRQ_ERR || event->event_type == IBV_EVENT_SRQ_LIMIT_REACHED)
    node = static_cast<Srq*>(event->element.srq);
  else
    node = static_cast<Qp*>(event->element.qp);
  const Entry entry(Call::ack_async_event, node);
  if (*count > 0)
    --*count;
  else
    violation_locked(*node->process->core, *node->process, "ack_async_event of an event that was not read");
}

ibv_comp_channel* create_comp_channel(ibv_context* opaque) {
  auto* context = static_cast<Context*>(opaque);
  const Entry entry(Call::create_comp_channel, context);
  if (entry.error != 0) return entry.fail<ibv_comp_channel>();
  auto* channel = context->process->core->make<Channel>(*context->process, *context->card);
  channel->context = context;
  channel->fd = channel->tokens.fd();
  ++context->process->alive.channels;
  return channel;
}

int destroy_comp_channel(ibv_comp_channel* opaque) {
  auto* channel = static_cast<Channel*>(opaque);
  const Entry entry(Call::destroy_comp_channel, channel);
  if (entry.error != 0) return entry.error;
  if (channel->users != 0) return EBUSY;
  channel->alive = false;
  channel->tokens.close();
  --channel->process->alive.channels;
  return 0;
}

ibv_cq* create_cq(ibv_context* opaque, int entries, void* user, ibv_comp_channel* opaque_channel,
                  int vector) {
  auto* context = static_cast<Context*>(opaque);
  const Entry entry(Call::create_cq, context);
  if (entry.error != 0) return entry.fail<ibv_cq>();
  auto* channel = static_cast<Channel*>(opaque_channel);
  if (entries < 1 || entries > context->card->spec.max_cqe || vector < 0 ||
      vector >= context->num_comp_vectors || (channel != nullptr && channel->context != context)) {
    errno = EINVAL;
    return nullptr;
  }
  Core& core = *context->process->core;
  Cq* cq = core.make<Cq>(*context->process, *context->card);
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = user;
  cq->handle = core.next_handle++;
  cq->cqe = entries;
  cq->ring.resize(static_cast<std::size_t>(entries));
  if (channel != nullptr) ++channel->users;
  ++context->process->alive.cqs;
  return cq;
}

template <class T, class Match>
void forget_events(Tokens& tokens, std::deque<T>& events, Match match) {
  for (auto count = std::erase_if(events, match); count > 0; --count) tokens.take();
}

int destroy_cq(ibv_cq* opaque) {
  auto* cq = static_cast<Cq*>(opaque);
  const Entry entry(Call::destroy_cq, cq);
  if (entry.error != 0) return entry.error;
  if (cq->users != 0) return EBUSY;
  if (cq->unacked_completions != 0 || cq->unacked_async != 0) {
    violation_locked(*cq->process->core, *cq->process,
                     "destroy_cq with events not acknowledged: the real one waits for ever");
    return EBUSY;
  }
  if (auto* channel = static_cast<Channel*>(cq->channel)) {
    forget_events(channel->tokens, channel->events, [&](const Cq* other) { return other == cq; });
    --channel->users;
  }
  auto* context = static_cast<Context*>(cq->context);
  forget_events(context->tokens, context->events, [&](const ibv_async_event& event) {
    return event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq;
  });
  cq->alive = false;
  cq->ring = {};
  cq->count = 0;
  --cq->process->alive.cqs;
  return 0;
}

int poll_cq(ibv_cq* opaque, int count, ibv_wc* out) {
  auto* cq = static_cast<Cq*>(opaque);
  const Entry entry(Call::poll_cq, cq);
  if (entry.error != 0) return -entry.error;
  Core& core = *cq->process->core;
  if (!core.active.empty() || !core.ghosts.empty() || !core.lingering.empty()) {
    if (core.lagging)
      for (auto steps = core.random() % 4; steps > 0; --steps) step_locked(core);
    else
      tick_active_locked(core);
  }
  int polled = 0;
  while (polled < count && cq->count != 0) {
    Completion& completion = cq->ring[cq->head];
    cq->head = cq->head + 1 == cq->ring.size() ? 0 : cq->head + 1;
    --cq->count;
    out[polled++] = completion.wc;
    if (completion.freed != 0) completion.qp->freed = std::max(completion.qp->freed, completion.freed);
  }
  cq->process->counters.completions += static_cast<std::uint64_t>(polled);
  if (polled == 0) ++cq->process->counters.empty_polls;
  return polled;
}

int req_notify_cq(ibv_cq* opaque, int solicited_only) {
  auto* cq = static_cast<Cq*>(opaque);
  const Entry entry(Call::req_notify_cq, cq);
  if (entry.error != 0) return entry.error;
  if (cq->channel == nullptr) return EINVAL;
  // The wider request stands, whichever comes last.
  if (cq->armed != Cq::Armed::any) cq->armed = solicited_only != 0 ? Cq::Armed::solicited : Cq::Armed::any;
  return 0;
}

int get_cq_event(ibv_comp_channel* opaque, ibv_cq** cq, void** user) {
  auto* channel = static_cast<Channel*>(opaque);
  Entry entry(Call::get_cq_event, channel);
  if (entry.error != 0) return errno = entry.error, -1;
  Cq* next = nullptr;
  if (!take(entry.lock, *channel, channel->events, &next)) return -1;
  ++next->unacked_completions;
  *cq = next;
  *user = next->cq_context;
  return 0;
}

void ack_cq_events(ibv_cq* opaque, unsigned count) {
  auto* cq = static_cast<Cq*>(opaque);
  const Entry entry(Call::ack_cq_events, cq);
  if (static_cast<unsigned>(cq->unacked_completions) < count) {
    violation_locked(*cq->process->core, *cq->process, "ack_cq_events of more events than were read");
    count = static_cast<unsigned>(cq->unacked_completions);
  }
  cq->unacked_completions -= static_cast<int>(count);
}

/// Takes `node` out of what the device finds by number, and of its process's counts.
void bury(Node& node) {
  Alive& alive = node.process->alive;
  if (auto* qp = dynamic_cast<Qp*>(&node)) {
    if (!node.card->removed) leave_ghosts_locked(*node.process->core, *qp);
    node.card->qps.erase(qp->qp_num);
    std::erase(node.process->core->active, qp);
    --alive.qps;
  } else if (auto* mr = dynamic_cast<Mr*>(&node)) {
    node.card->keys[(mr->lkey >> 8) & 0xffff] = nullptr;
    forget_lingering_locked(*node.process->core, *mr);
    --alive.mrs;
  } else if (auto* channel = dynamic_cast<Channel*>(&node)) {
    channel->closed = true;
    channel->tokens.add();  // whoever waits hears that nothing comes
    --alive.channels;
  } else if (dynamic_cast<Pd*>(&node) != nullptr) {
    --alive.pds;
  } else if (dynamic_cast<Cq*>(&node) != nullptr) {
    --alive.cqs;
  } else if (dynamic_cast<Srq*>(&node) != nullptr) {
    --alive.srqs;
  }
  node.alive = false;
}

}  // namespace

void async_locked(Context& context, ibv_event_type type, Node* element, int port) {
  if (context.closed || !context.alive) return;
  ibv_async_event event{};
  event.event_type = type;
  if (element == nullptr)
    event.element.port_num = port;
  else if (auto* qp = dynamic_cast<Qp*>(element))
    event.element.qp = qp;
  else if (auto* cq = dynamic_cast<Cq*>(element))
    event.element.cq = cq;
  context.events.push_back(event);
  context.tokens.add();
}

void device_event_locked(Core& core, Device& device, ibv_event_type type, int port) {
  for (Process& process : core.processes)
    for (Context* context : process.contexts)
      if (context->card == &device) async_locked(*context, type, nullptr, port);
}

void close_context_locked(Context& context) {
  Core& core = *context.process->core;
  for (const auto& node : core.nodes) {
    const ibv_context* of = nullptr;
    if (const auto* pd = dynamic_cast<const Pd*>(node.get())) of = pd->context;
    if (const auto* cq = dynamic_cast<const Cq*>(node.get())) of = cq->context;
    if (const auto* mr = dynamic_cast<const Mr*>(node.get())) of = mr->context;
    if (const auto* qp = dynamic_cast<const Qp*>(node.get())) of = qp->context;
    if (const auto* srq = dynamic_cast<const Srq*>(node.get())) of = srq->context;
    if (const auto* channel = dynamic_cast<const Channel*>(node.get())) of = channel->context;
    if (of == &context && node->alive) bury(*node);
  }
  std::erase(context.process->contexts, &context);
  context.alive = false;
  context.tokens.close();
  --context.process->alive.contexts;
}

void complete_locked(Core& core, Cq& cq, const Completion& completion, bool solicited) {
  if (!cq.alive || cq.overrun) return;
  if (!core.lingering.empty()) flush_lingering_locked(core, *cq.card);  // its own write is ordered
  if (cq.count == cq.ring.size()) {
    cq.overrun = true;
    core.overruns.push_back(&cq);
    async_locked(*static_cast<Context*>(cq.context), IBV_EVENT_CQ_ERR, &cq);
    return;
  }
  std::size_t at = cq.head + cq.count;
  if (at >= cq.ring.size()) at -= cq.ring.size();
  cq.ring[at] = completion;
  ++cq.count;
  const bool wakes = cq.armed == Cq::Armed::any || (cq.armed == Cq::Armed::solicited &&
                                                    (solicited || completion.wc.status != IBV_WC_SUCCESS));
  if (!wakes) return;
  cq.armed = Cq::Armed::no;
  auto* channel = static_cast<Channel*>(cq.channel);
  channel->events.push_back(&cq);
  channel->tokens.add();
  ++cq.process->counters.events;
}

void forget_completions_locked(Cq& cq, const Qp* qp) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < cq.count; ++i) {
    const Completion completion = cq.ring[(cq.head + i) % cq.ring.size()];
    if (completion.qp == qp) continue;
    cq.ring[(cq.head + kept++) % cq.ring.size()] = completion;
  }
  cq.count = kept;
}

void forget_qp_events_locked(Qp& qp) {
  auto* context = static_cast<Context*>(qp.context);
  forget_events(context->tokens, context->events, [&](const ibv_async_event& event) {
    return event.event_type != IBV_EVENT_CQ_ERR && unacked(event) != nullptr && event.element.qp == &qp;
  });
}

void vanish_locked(Core& core, const Process* process, const Device* device) {
  ++core.epoch;
  for (Process& one : core.processes)
    if (&one == process) one.alive.lists = 0;
  const auto meant = [&](const Node& node) {
    return node.alive && (process == nullptr || node.process == process) &&
           (device == nullptr || node.card == device);
  };
  // Queue pairs first: what the network carries of them is read from regions that are still there.
  for (const auto& node : core.nodes)
    if (meant(*node) && dynamic_cast<Qp*>(node.get()) != nullptr) bury(*node);
  for (const auto& node : core.nodes) {
    if (!meant(*node)) continue;
    if (dynamic_cast<Listed*>(node.get()) != nullptr) continue;
    auto* context = dynamic_cast<Context*>(node.get());
    if (context == nullptr) {
      bury(*node);
      continue;
    }
    // The file stays open until it is closed; nothing more is to be read from it.
    context->closed = true;
    context->tokens.add();
    if (process == nullptr) continue;
    context->alive = false;
    --context->process->alive.contexts;
    std::erase(context->process->contexts, context);
  }
}

void fill_completion_calls(VerbsApi& table) {
  table.get_async_event = get_async_event;
  table.ack_async_event = ack_async_event;
  table.create_comp_channel = create_comp_channel;
  table.destroy_comp_channel = destroy_comp_channel;
  table.create_cq = create_cq;
  table.destroy_cq = destroy_cq;
  table.poll_cq = poll_cq;
  table.req_notify_cq = req_notify_cq;
  table.get_cq_event = get_cq_event;
  table.ack_cq_events = ack_cq_events;
}

}  // namespace cenote::transport::verbs::test::detail
