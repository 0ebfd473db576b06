/* What the tests of device buffers share: a driver opened at run time, as the program under test finds it,
 * and ranks as threads. Checks return the line that failed. */
#ifndef CENOTE_TESTS_DEVICE_BUFFERS_H
#define CENOTE_TESTS_DEVICE_BUFFERS_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cenote/cenote.h"

#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, cenote_last_error()); \
      return __LINE__;                                                                          \
    }                                                                                           \
  } while (0)
#define TRY(call)                               \
  do {                                          \
    const int failed_line_ = (call);            \
    if (failed_line_ != 0) return failed_line_; \
  } while (0)

typedef unsigned long long device_ptr;

/* The functions of the driver that the tests call themselves. */
struct driver {
  void* library;
  void (*cards)(unsigned cards, size_t bytes, unsigned long long seed);
  int (*init)(unsigned);
  int (*retain)(void** context, int device);
  int (*set_current)(void* context);
  int (*alloc)(device_ptr*, size_t);
  int (*release)(device_ptr);
  int (*host_alloc)(void**, size_t, unsigned);
  int (*free_host)(void*);
  int (*to_device)(device_ptr, const void*, size_t);
  int (*to_host)(void*, device_ptr, size_t);
  int (*copy_async)(device_ptr, device_ptr, size_t, void* stream);
  int (*synchronize)(void);
  int (*stream_create)(void** stream, unsigned flags);
  int (*stream_destroy)(void* stream);
  int (*wait_value)(void* stream, device_ptr, uint32_t value, unsigned flags);
};

static int open_driver(struct driver* driver, const char* path) {
  driver->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  CHECK(driver->library != NULL);
  const struct {
    const char* name;
    void* at;
  } wanted[] = {{"cenote_standin_cards", &driver->cards},
                {"cuInit", &driver->init},
                {"cuDevicePrimaryCtxRetain", &driver->retain},
                {"cuCtxSetCurrent", &driver->set_current},
                {"cuMemAlloc_v2", &driver->alloc},
                {"cuMemFree_v2", &driver->release},
                {"cuMemHostAlloc", &driver->host_alloc},
                {"cuMemFreeHost", &driver->free_host},
                {"cuMemcpyHtoD_v2", &driver->to_device},
                {"cuMemcpyDtoH_v2", &driver->to_host},
                {"cuMemcpyDtoDAsync_v2", &driver->copy_async},
                {"cuCtxSynchronize", &driver->synchronize},
                {"cuStreamCreate", &driver->stream_create},
                {"cuStreamDestroy_v2", &driver->stream_destroy},
                {"cuStreamWaitValue32_v2", &driver->wait_value}};
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; ++i) {
    void* found = dlsym(driver->library, wanted[i].name);
    CHECK(found != NULL);
    memcpy(wanted[i].at, &found, sizeof found);
  }
  return 0;
}

/* One rank: a thread, with the primary context of a card of its own (ranks share cards where they are few).
 */
struct rank {
  struct driver* driver;
  cenote_context* context;
  cenote_unique_id id;
  const char* algorithm;
  uint32_t number, ranks, cards;
  int (*body)(struct rank*);
  pthread_barrier_t* meet; /* of the threads, past the library */
  cenote_comm* comm;
  int failed_line;
};

static int join_and_run(struct rank* self) {
  void* context = NULL;
  CHECK(self->driver->retain(&context, (int)(self->number % self->cards)) == 0);
  CHECK(self->driver->set_current(context) == 0);
  cenote_comm_options options = {sizeof options};
  options.rank = self->number;
  options.ranks = self->ranks;
  options.id = self->id;
  options.algorithm = self->algorithm;
  CHECK(cenote_comm_create(self->context, &options, &self->comm) == CENOTE_SUCCESS);
  const int failed = self->body(self);
  cenote_comm_destroy(self->comm);
  return failed;
}

static void* rank_thread(void* self) {
  ((struct rank*)self)->failed_line = join_and_run(self);
  return NULL;
}

/* Runs `body` at each of up to four ranks over `transports`. */
static int run_ranks(struct driver* driver, const char* library, const char* transports,
                     const char* algorithm, uint32_t ranks, uint32_t cards, int (*body)(struct rank*)) {
  cenote_context_options options = {sizeof options, transports, NULL, library};
  cenote_context* context = NULL;
  CHECK(cenote_context_create(&options, &context) == CENOTE_SUCCESS);
  struct rank all[4];
  pthread_t threads[4];
  pthread_barrier_t meet;
  CHECK(pthread_barrier_init(&meet, NULL, ranks) == 0);
  cenote_unique_id id;
  CHECK(cenote_unique_id_create(context, &id) == CENOTE_SUCCESS);
  for (uint32_t r = 0; r < ranks; ++r) {
    all[r] = (struct rank){driver, context, id, algorithm, r, ranks, cards, body, &meet, NULL, 0};
    CHECK(pthread_create(&threads[r], NULL, rank_thread, &all[r]) == 0);
  }
  for (uint32_t r = 0; r < ranks; ++r) pthread_join(threads[r], NULL);
  cenote_context_destroy(context);
  pthread_barrier_destroy(&meet);
  for (uint32_t r = 0; r < ranks; ++r) TRY(all[r].failed_line);
  return 0;
}

/* Waits for what a call has started; its own status where it started nothing. */
static cenote_status finish(cenote_comm* comm, cenote_status started, cenote_request* request) {
  return started != CENOTE_SUCCESS ? started : cenote_wait(comm, request, 0);
}

#endif
