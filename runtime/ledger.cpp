#include "runtime/ledger.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace cenote {
namespace {

using ledger_page::Row;
using ledger_page::Written;
using Word = std::atomic<std::uint64_t>;

void set(Word& word, std::uint64_t value) { word.store(value, std::memory_order_release); }
void set(Word& word, Clock::time_point when) {
  set(word, static_cast<std::uint64_t>(when.time_since_epoch().count()));
}
void set(Word (&words)[ledger_page::name_words], const LedgerName& name) {
  for (std::uint32_t i = 0; i < ledger_page::name_words; ++i) set(words[i], name.word(i));
}

/// A sequence lock with one writer. Words are stored with release: a reader that sees a new one also sees the
/// odd version before it.
class RowWriter {
 public:
  explicit RowWriter(Row<Word>& row) : row_(row), version_(row.version.load(std::memory_order_relaxed)) {
    set(row_.version, version_ + 1);
  }
  ~RowWriter() { set(row_.version, version_ + 2); }
  RowWriter(const RowWriter&) = delete;
  RowWriter& operator=(const RowWriter&) = delete;

 private:
  Row<Word>& row_;
  std::uint64_t version_;
};

}  // namespace

Result<std::unique_ptr<Ledger>> Ledger::create(const Member& member) {
  constexpr const char* stage = "make the ledger of a communicator";
  UniqueFd memory(::memfd_create(ledger_page::memory_name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return cenote::fail(system_error(stage, errno));
  if (::ftruncate(memory.get(), sizeof(Written)) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return cenote::fail(system_error(stage, errno));
  void* base = ::mmap(nullptr, sizeof(Written), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (base == MAP_FAILED) return cenote::fail(system_error(stage, errno));
  auto* page = static_cast<Written*>(base);  // zeros, of which only what is used becomes memory
  auto& head = page->head;
  set(head.pid, static_cast<std::uint64_t>(::getpid()));
  set(head.group, member.group);
  set(head.rank, member.rank);
  set(head.size, member.size);
  const auto now = Clock::now();
  set(head.begun_at, now);
  set(head.seen, now);
  set(head.magic, ledger_page::magic);
  return std::unique_ptr<Ledger>(new Ledger(std::move(memory), page));
}

Ledger::Ledger(UniqueFd memory, Written* page) : memory_(std::move(memory)), page_(page) {
  for (auto i = ledger_page::rows; i > 0; --i) free_.push_back(i - 1);
}

Ledger::~Ledger() { ::munmap(page_, sizeof(Written)); }

Ledger::Ticket Ledger::begin(const Operation& operation) {
  if (free_.empty()) {
    set(page_->head.not_shown, page_->head.not_shown.load(std::memory_order_relaxed) + 1);
    return {Ticket::no_row};
  }
  const Ticket ticket{free_.back()};
  free_.pop_back();
  auto& row = page_->row[ticket.row];
  const RowWriter writing(row);
  set(row.operation, operation.name);
  set(row.stage, "started");
  set(row.sequence, operation.sequence);
  set(row.bytes, operation.bytes);
  set(row.count, operation.count);
  set(row.detail, operation.detail);
  set(row.began, operation.began);
  set(row.in_stage_since, operation.began);
  set(row.waits_for, ~std::uint64_t{0});
  return ticket;
}

void Ledger::begun(std::uint64_t sequence, Clock::time_point now) {
  set(page_->head.begun_at, now);
  set(page_->head.begun, sequence);
}

void Ledger::stage(Ticket ticket, LedgerName stage, Clock::time_point since, Wait wait) {
  if (ticket.row >= ledger_page::rows) return;
  auto& row = page_->row[ticket.row];
  const RowWriter writing(row);
  set(row.stage, stage);
  set(row.in_stage_since, since);
  set(row.waits_for, std::uint64_t{wait.at_the_end} << 32 | wait.on);
}

void Ledger::end(Ticket ticket) {
  if (ticket.row == Ticket::none) return;
  if (ticket.row == Ticket::no_row) {
    set(page_->head.not_shown, page_->head.not_shown.load(std::memory_order_relaxed) - 1);
    return;
  }
  auto& row = page_->row[ticket.row];
  const RowWriter writing(row);
  set(row.operation, "");
  free_.push_back(ticket.row);
}

void Ledger::seen(Clock::time_point now) { set(page_->head.seen, now); }

void Ledger::fail(std::uint32_t culprit, std::string_view text, Clock::time_point now) {
  auto& head = page_->head;
  text = text.substr(0, sizeof head.failure - 1);
  for (std::size_t i = 0; i < ledger_page::failure_words; ++i) {
    std::uint64_t word = 0;
    for (std::size_t at = 8 * i; at < std::min(8 * i + 8, text.size()); ++at)
      word |= std::uint64_t{static_cast<unsigned char>(text[at])} << (8 * (at % 8));
    set(head.failure[i], word);
  }
  set(head.culprit, culprit);
  set(head.failed_at, now);
  set(head.failed, 1);
}

}  // namespace cenote
