// Two-VM tests: the same test case runs in both VMs at the same time, and its two halves talk here, over a
// wire of their own, which no fault cuts. A half that ends early, crashed or failed, ends the other one's
// wait.
#pragma once

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

#include "runtime/deadline.h"
#include "runtime/unique_fd.h"
#include "tests/vm/environment.h"

namespace cenote::test::vm {

/// Every wait has the deadline that `open` was given. Failures throw std::runtime_error, which fails the
/// test.
class Rendezvous {
 public:
  /// Meets the other VM in the test case `name`; both must name the same one.
  static Rendezvous open(const std::string& name, Deadline deadline);

  void send(const std::string& bytes);
  [[nodiscard]] std::string receive();
  /// Returns when the other half has got to the same place, which is named for the message when it does not.
  void barrier(const std::string& place);

  /// Hands a plain struct over and returns the other half's.
  template <typename T>
  [[nodiscard]] T exchange(const T& mine) {
    static_assert(std::is_trivially_copyable_v<T>);
    send(std::string(reinterpret_cast<const char*>(&mine), sizeof mine));
    const std::string bytes = receive();
    T theirs;
    if (bytes.size() != sizeof theirs) throw_size(bytes.size(), sizeof theirs);
    std::memcpy(&theirs, bytes.data(), sizeof theirs);
    return theirs;
  }

 private:
  Rendezvous(UniqueFd socket, Deadline deadline) : socket_(std::move(socket)), deadline_(deadline) {}
  [[noreturn]] static void throw_size(std::size_t got, std::size_t wanted);
  void wait_for(short events, const char* what) const;
  void read_exactly(char* to, std::size_t size);

  UniqueFd socket_;
  Deadline deadline_;
};

/// A test case with two halves; `other()` is the other VM's.
class TwoVmTest : public ::testing::Test {
 protected:
  /// `limit`: how long the test case may take at most, its wait for the other half included.
  explicit TwoVmTest(Clock::duration limit = std::chrono::minutes(4)) : limit_(limit) {}
  void SetUp() override;
  void TearDown() override;
  [[nodiscard]] bool first() const { return environment().host == 0; }
  Rendezvous& other() { return *other_; }

 private:
  Clock::duration limit_;
  std::unique_ptr<Rendezvous> other_;
};

}  // namespace cenote::test::vm
