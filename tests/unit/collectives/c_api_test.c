/* The C interface from C: what a framework written in C sees. Two ranks as threads. Returns 0, or the line of
 * the first check that failed. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cenote/cenote.h"

#define CHECK(condition)                                                                \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, cenote_last_error()); \
      return __LINE__;                                                                  \
    }                                                                                   \
  } while (0)

struct rank {
  cenote_context* context;
  cenote_unique_id id;
  uint32_t number;
  int failed_line;
};

static int copy_from(void* user, void* host, uint64_t device, size_t bytes) {
  memcpy(host, (char*)user + device, bytes);
  return 0;
}
static int copy_to(void* user, uint64_t device, const void* host, size_t bytes) {
  memcpy((char*)user + device, host, bytes);
  return 0;
}

/* Two ranks put into each other's memory. */
static int windows(cenote_comm* comm, uint32_t rank) {
  cenote_request request = {0};
  uint64_t count = 7;
  const uint32_t other = 1 - rank;
  CHECK(cenote_signal(comm, other, 0, &request) == CENOTE_INVALID_ARGUMENT);
  CHECK(strstr(cenote_last_error(), "window") != NULL);

  cenote_window* window = NULL;
  cenote_window_options options = {0};
  CHECK(cenote_window_create(comm, &options, &window) == CENOTE_INVALID_ARGUMENT && window == NULL);
  CHECK(strstr(cenote_last_error(), "size") != NULL);
  CHECK(cenote_window_create(NULL, &options, &window) == CENOTE_INVALID_ARGUMENT);
  CHECK(cenote_window_create(comm, NULL, &window) == CENOTE_INVALID_ARGUMENT);
  options.size = sizeof options;
  options.bytes = 16 + rank;
  CHECK(cenote_window_create(comm, &options, &window) == CENOTE_SUCCESS);
  CHECK(cenote_window_bytes(window, 0) == 16 && cenote_window_bytes(window, 1) == 17);
  CHECK(cenote_window_bytes(window, 2) == 0 && cenote_window_bytes(NULL, 0) == 0);
  unsigned char* part = cenote_window_memory(window);
  CHECK(part != NULL && part[0] == 0 && cenote_window_memory(NULL) == NULL);

  unsigned char mine[8] = {1, 2, 3, 4, 5, 6, 7, (unsigned char)rank}, back[8] = {0};
  CHECK(cenote_put(window, other, 8, mine, 8, 31, &request) == CENOTE_SUCCESS);
  CHECK(cenote_wait(comm, &request, 0) == CENOTE_SUCCESS && request.sequence == 0);
  CHECK(cenote_signal_wait(comm, other, 31, 1, 0) == CENOTE_SUCCESS);
  CHECK(part[8] == 1 && part[15] == other && part[7] == 0);
  CHECK(cenote_get(window, other, 8, back, 8, &request) == CENOTE_SUCCESS);
  int done = 0;
  while (!done) CHECK(cenote_test(comm, &request, &done) == CENOTE_SUCCESS);
  CHECK(memcmp(mine, back, 8) == 0);

  CHECK(cenote_signal(comm, other, 0, &request) == CENOTE_SUCCESS);
  CHECK(cenote_wait(comm, &request, 0) == CENOTE_SUCCESS);
  do {
    CHECK(cenote_progress(comm) == CENOTE_SUCCESS);
    CHECK(cenote_signal_count(comm, other, 0, &count) == CENOTE_SUCCESS);
  } while (count == 0);
  CHECK(count == 1);
  CHECK(cenote_signal_wait(comm, other, 0, 2, 1) == CENOTE_DEADLINE_EXCEEDED);

  /* Refused before anything moves, and nothing is broken by it. */
  CHECK(cenote_put(window, other, 10, mine, 8, CENOTE_NO_SIGNAL, &request) == CENOTE_INVALID_ARGUMENT);
  CHECK(strstr(cenote_last_error(), "8 bytes at 10 of the") != NULL && request.sequence == 0);
  CHECK(cenote_put(window, 2, 0, mine, 8, CENOTE_NO_SIGNAL, &request) == CENOTE_INVALID_ARGUMENT);
  CHECK(cenote_put(window, other, 0, NULL, 8, CENOTE_NO_SIGNAL, &request) == CENOTE_INVALID_ARGUMENT);
  CHECK(cenote_put(window, other, 0, mine, 8, CENOTE_SIGNALS, &request) == CENOTE_INVALID_ARGUMENT);
  CHECK(cenote_put(NULL, other, 0, mine, 8, CENOTE_NO_SIGNAL, &request) == CENOTE_INVALID_ARGUMENT);
  CHECK(cenote_get(window, other, 0, back, 8, NULL) == CENOTE_INVALID_ARGUMENT);
  CHECK(cenote_get(window, other, UINT64_MAX, back, 8, &request) == CENOTE_INVALID_ARGUMENT);
  CHECK(cenote_signal_count(comm, other, 0, NULL) == CENOTE_INVALID_ARGUMENT);
  CHECK(cenote_signal_wait(NULL, 0, 0, 1, 0) == CENOTE_INVALID_ARGUMENT);
  CHECK(cenote_progress(NULL) == CENOTE_INVALID_ARGUMENT);
  CHECK(cenote_barrier(comm, &request) == CENOTE_SUCCESS);
  CHECK(cenote_wait(comm, &request, 0) == CENOTE_SUCCESS);
  CHECK(part[0] == 0);
  cenote_window_destroy(window);
  cenote_window_destroy(NULL);
  return 0;
}

static int run(struct rank* self) {
  cenote_comm_options options = {sizeof options};
  options.rank = self->number;
  options.ranks = 2;
  options.id = self->id;
  cenote_comm* comm = NULL;
  CHECK(cenote_comm_create(self->context, &options, &comm) == CENOTE_SUCCESS);
  CHECK(cenote_comm_rank(comm) == self->number && cenote_comm_ranks(comm) == 2);

  float mine[3] = {1.0F + (float)self->number, 2.0F, -3.0F};
  float sum[3];
  cenote_request request;
  CHECK(cenote_allreduce(comm, mine, sum, 3, CENOTE_FLOAT32, CENOTE_SUM, &request) == CENOTE_SUCCESS);
  CHECK(cenote_wait(comm, &request, 0) == CENOTE_SUCCESS);
  CHECK(request.sequence == 0 && sum[0] == 3.0F && sum[1] == 4.0F && sum[2] == -6.0F);

  int64_t own = 10 + self->number;
  int64_t all[2];
  CHECK(cenote_allgather(comm, &own, all, 1, CENOTE_INT64, &request) == CENOTE_SUCCESS);
  int done = 0;
  while (!done) CHECK(cenote_test(comm, &request, &done) == CENOTE_SUCCESS);
  CHECK(all[0] == 10 && all[1] == 11);

  int32_t passed = self->number == 1 ? 42 : 0;
  CHECK(cenote_broadcast(comm, &passed, 1, CENOTE_INT32, 1, &request) == CENOTE_SUCCESS);
  CHECK(cenote_wait(comm, &request, 10000) == CENOTE_SUCCESS);
  CHECK(passed == 42);

  double device[4] = {self->number, 1, 2, 3}; /* "device" addresses count from 0 */
  cenote_device_access access = {sizeof access, device, copy_from, copy_to};
  cenote_buffer buffer = {sizeof buffer, 8, 3 * sizeof(double), &access};
  CHECK(cenote_allreduce_buffers(comm, &buffer, &buffer, 3, CENOTE_FLOAT64, CENOTE_AVG, &request) ==
        CENOTE_SUCCESS);
  CHECK(cenote_wait(comm, &request, 0) == CENOTE_SUCCESS);
  CHECK(device[0] == self->number && device[1] == 1 && device[3] == 3);

  CHECK(cenote_allreduce(comm, mine, mine + 1, 2, CENOTE_FLOAT32, CENOTE_SUM, &request) ==
        CENOTE_INVALID_ARGUMENT);
  CHECK(strstr(cenote_last_error(), "overlap") != NULL);
  CHECK(cenote_barrier(comm, &request) == CENOTE_SUCCESS);
  CHECK(cenote_wait(comm, &request, 0) == CENOTE_SUCCESS);

  const int window_line = windows(comm, self->number);
  if (window_line != 0) return window_line;

  /* Rank 0 gives up; rank 1 hears of it. */
  if (self->number == 0) cenote_comm_abort(comm, "enough");
  cenote_status ended = cenote_barrier(comm, &request);
  if (ended == CENOTE_SUCCESS) ended = cenote_wait(comm, &request, 0);
  CHECK(ended == (self->number == 0 ? CENOTE_CANCELLED : CENOTE_PEER_FAILED));
  CHECK(strstr(cenote_last_error(), "rank 0") != NULL && strstr(cenote_last_error(), "enough") != NULL);
  cenote_comm_destroy(comm);
  return 0;
}

static void* run_thread(void* self) {
  ((struct rank*)self)->failed_line = run(self);
  return NULL;
}

static int refusals(cenote_context* context) {
  cenote_comm* comm = NULL;
  cenote_comm_options options = {sizeof options};
  CHECK(cenote_comm_create(context, &options, &comm) == CENOTE_INVALID_ARGUMENT && comm == NULL);
  CHECK(strstr(cenote_last_error(), "rank 0 of 0") != NULL);
  CHECK(cenote_comm_create(context, NULL, &comm) == CENOTE_INVALID_ARGUMENT);
  options.size = 0;
  CHECK(cenote_comm_create(context, &options, &comm) == CENOTE_INVALID_ARGUMENT);
  CHECK(strstr(cenote_last_error(), "size") != NULL);
  options.size = sizeof options;
  options.ranks = 2;
  strcpy(options.id.text, "nonsense");
  CHECK(cenote_comm_create(context, &options, &comm) == CENOTE_INVALID_ARGUMENT);
  CHECK(cenote_wait(NULL, NULL, 0) == CENOTE_INVALID_ARGUMENT);
  cenote_comm_destroy(NULL);
  cenote_context_destroy(NULL);
  cenote_comm_abort(NULL, NULL);

  /* A caller built when the struct ended after `ranks` gets the defaults for the rest. */
  options = (cenote_comm_options){offsetof(cenote_comm_options, id)};
  options.ranks = 1;
  options.algorithm = "beyond the size, so never read";
  CHECK(cenote_comm_create(context, &options, &comm) == CENOTE_SUCCESS);
  cenote_comm_destroy(comm);
  CHECK(strcmp(cenote_status_text(CENOTE_SUCCESS), "success") == 0);
  CHECK(cenote_status_text(CENOTE_PEER_FAILED)[0] != 0);
  CHECK(strcmp(cenote_status_text((cenote_status)99), "unknown status") == 0);
  CHECK(cenote_version() >= 100);
  return 0;
}

int main(void) {
  cenote_context_options context_options = {sizeof context_options, "shm,tcp", "127.0.0.1"};
  cenote_context* context = NULL;
  CHECK(cenote_context_create(&context_options, &context) == CENOTE_SUCCESS);
  const int refused = refusals(context);
  if (refused != 0) return refused > 255 ? 255 : refused;
  struct rank ranks[2] = {{context}, {context}};
  CHECK(cenote_unique_id_create(context, &ranks[0].id) == CENOTE_SUCCESS);
  ranks[1].id = ranks[0].id;
  pthread_t threads[2];
  for (uint32_t r = 0; r < 2; ++r) {
    ranks[r].number = r;
    CHECK(pthread_create(&threads[r], NULL, run_thread, &ranks[r]) == 0);
  }
  for (int r = 0; r < 2; ++r) pthread_join(threads[r], NULL);
  cenote_context_destroy(context);
  for (int r = 0; r < 2; ++r) {
    if (ranks[r].failed_line != 0) return ranks[r].failed_line > 255 ? 255 : ranks[r].failed_line;
  }
  puts("the C interface works from C");
  return 0;
}
