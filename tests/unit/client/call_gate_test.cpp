// A call gate ends what another thread does, and is never late.
#include "pool/call_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace cenote::pool {
namespace {

using std::chrono::hours;

TEST(CallGate, LetsNobodyInOnceItIsShut) {
  CallGate gate;
  EXPECT_TRUE(CallGate::Call(gate, [] {}));
  EXPECT_FALSE(gate.is_shut());
  gate.shut();
  EXPECT_FALSE(CallGate::Call(gate, [] { FAIL() << "there is nothing to end"; }));
  EXPECT_FALSE(gate.sleep(hours(1)));
  EXPECT_TRUE(gate.is_shut());
}

TEST(CallGate, EndsTheCallInFlightOnceAndNoneThatIsOver) {
  int ended = 0;
  CallGate gate;
  {
    const CallGate::Call over(gate, [&] { ended += 100; });
  }
  const CallGate::Call call(gate, [&] { ++ended; });
  gate.shut();
  gate.shut();
  EXPECT_EQ(ended, 1);
}

TEST(CallGate, ACallThatBeginsWhileItIsShutIsRefusedOrEnded) {
  for (int round = 0; round < 500; ++round) {
    CallGate gate;
    std::thread shutting([&] { gate.shut(); });
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
    {
      const CallGate::Call call(gate, [&] {
        const std::lock_guard lock(mutex);
        ended = true;
        changed.notify_all();
      });
      std::unique_lock lock(mutex);
      if (call) {
        EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return ended; }));
      } else {
        EXPECT_FALSE(ended);
      }
    }
    shutting.join();
  }
}

TEST(CallGate, ACallThatIsOverIsNeverEndedAnyMore) {
  for (int round = 0; round < 500; ++round) {
    CallGate gate;
    std::thread shutting([&] { gate.shut(); });
    {
      // Written without a lock: the thread sanitizer sees an end that comes after the call.
      int ended = 0;
      const CallGate::Call call(gate, [&] { ++ended; });
    }
    shutting.join();
  }
}

TEST(CallGate, SleepersWakeWhenItIsShutOrTheyAreCancelled) {
  CallGate gate;
  CancelFlag cancel;
  std::thread cancelled([&] { EXPECT_FALSE(gate.sleep(hours(1), &cancel)); });
  std::thread sleeper([&] { EXPECT_FALSE(gate.sleep(hours(1))); });
  cancel.raise();
  cancelled.join();
  EXPECT_FALSE(gate.is_shut());
  gate.shut();
  sleeper.join();
}

TEST(CallGate, AnUndisturbedSleepIsAsLongAsItShould) {
  CallGate gate;
  const CancelFlag cancel;
  const auto begun = Clock::now();
  EXPECT_TRUE(gate.sleep(std::chrono::milliseconds(60), &cancel));
  EXPECT_TRUE(gate.sleep(std::chrono::milliseconds(5)));
  EXPECT_GE(Clock::now() - begun, std::chrono::milliseconds(65));
}

}  // namespace
}  // namespace cenote::pool
