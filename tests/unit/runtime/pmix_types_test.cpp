// What runtime/pmix_types.h says of PMIx's binary interface is what <pmix.h> says.
#include "runtime/pmix_types.h"

#include <gtest/gtest.h>
#include <pmix.h>

#include <cstddef>
#include <type_traits>

namespace cenote::launcher::pmix {
namespace {

static_assert(sizeof(Process) == sizeof(pmix_proc_t) &&
              offsetof(Process, rank) == offsetof(pmix_proc_t, rank));
static_assert(offsetof(Process, job) == offsetof(pmix_proc_t, nspace) &&
              sizeof(Process::job) == PMIX_MAX_NSLEN + 1);
static_assert(sizeof(Value) == sizeof(pmix_value_t) && offsetof(Value, data) == offsetof(pmix_value_t, data));
static_assert(sizeof(Type) == sizeof(pmix_data_type_t) && sizeof(to_all) == sizeof(pmix_scope_t));
static_assert(std::is_same_v<Status, pmix_status_t>);

/// A function pointer whose arguments are as many, and as wide.
template <class R, class... A, class S, class... B>
constexpr bool alike(R (*)(A...), S (*)(B...)) {
  return sizeof...(A) == sizeof...(B) && std::is_same_v<R, S> && ((sizeof(A) == sizeof(B)) && ...);
}

TEST(PmixTypes, NumbersAndKeysAreThoseOfTheHeader) {
  EXPECT_EQ(success, PMIX_SUCCESS);
  EXPECT_EQ(timed_out, PMIX_ERR_TIMEOUT);
  EXPECT_EQ(not_found, PMIX_ERR_NOT_FOUND);
  EXPECT_EQ(static_cast<int>(Type::text), PMIX_STRING);
  EXPECT_EQ(static_cast<int>(Type::uint32), PMIX_UINT32);
  EXPECT_EQ(to_all, PMIX_GLOBAL);
  EXPECT_EQ(whole_job, PMIX_RANK_WILDCARD);
  EXPECT_STREQ(job_size, PMIX_JOB_SIZE);
  EXPECT_STREQ(local_peers, PMIX_LOCAL_PEERS);
}

TEST(PmixTypes, FunctionsTakeWhatOursAreGiven) {
  using Get = Status (*)(const Process*, const char*, const Info*, std::size_t, Answer, void*);
  EXPECT_TRUE(alike(static_cast<Get>(nullptr), &PMIx_Get_nb));
  EXPECT_TRUE(alike(static_cast<Answer>(nullptr), static_cast<pmix_value_cbfunc_t>(nullptr)));
  EXPECT_TRUE(alike(static_cast<Status (*)(Process*, Info*, std::size_t)>(nullptr), &PMIx_Init));
  EXPECT_TRUE(alike(static_cast<Status (*)(const Info*, std::size_t)>(nullptr), &PMIx_Finalize));
  EXPECT_TRUE(alike(static_cast<Status (*)(std::uint8_t, const char*, Value*)>(nullptr), &PMIx_Put));
}

}  // namespace
}  // namespace cenote::launcher::pmix
