/* Collectives on device memory from C, over an emulated driver that is loaded as a program loads the real
 * one: device_buffers_test LIBCUDA. Every result is held against the same collective on host memory, to the
 * bit. */
#include "tests/unit/collectives/device_buffers.h"

static const size_t sizes[] = {4, 8, 2, 2, 4, 8}; /* by cenote_type */
enum { guard = 64 };

/* A buffer with guard bytes at both ends, on the host or on the rank's card. */
struct buffer {
  struct driver* driver; /* NULL: host memory */
  unsigned char* host;
  device_ptr device;
  size_t bytes;
};

static int make(struct buffer* buffer, struct rank* self, int on_device, const void* content, size_t bytes) {
  *buffer = (struct buffer){on_device ? self->driver : NULL, malloc(bytes + 2 * guard), 0, bytes};
  CHECK(buffer->host != NULL);
  memset(buffer->host, 0xA5, bytes + 2 * guard);
  if (content != NULL && bytes > 0) memcpy(buffer->host + guard, content, bytes);
  if (!on_device) return 0;
  CHECK(self->driver->alloc(&buffer->device, bytes + 2 * guard) == 0);
  CHECK(self->driver->to_device(buffer->device, buffer->host, bytes + 2 * guard) == 0);
  CHECK(self->driver->synchronize() == 0); /* pageable copies may return before they arrive */
  return 0;
}

static void* address(const struct buffer* buffer) {
  return buffer->driver != NULL ? (void*)(uintptr_t)(buffer->device + guard) : buffer->host + guard;
}

/* Whether exactly `expected` lies there, between untouched guards. Frees it. */
static int check_and_drop(struct buffer* buffer, const void* expected) {
  if (buffer->driver != NULL) {
    CHECK(buffer->driver->to_host(buffer->host, buffer->device, buffer->bytes + 2 * guard) == 0);
    CHECK(buffer->driver->release(buffer->device) == 0);
  }
  for (size_t i = 0; i < guard; ++i)
    CHECK(buffer->host[i] == 0xA5 && buffer->host[guard + buffer->bytes + i] == 0xA5);
  CHECK(buffer->bytes == 0 || memcmp(buffer->host + guard, expected, buffer->bytes) == 0);
  free(buffer->host);
  return 0;
}

/* Bits at random: infinities, NaNs and denormals among them. */
static void fill(unsigned char* bytes, size_t count, uint64_t seed) {
  uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (size_t i = 0; i < count; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    bytes[i] = (unsigned char)(state >> 32);
  }
}

static int allreduce_like_the_host(struct rank* self, size_t count, cenote_type type, cenote_op op) {
  const size_t bytes = count * sizes[type];
  unsigned char* content = malloc(bytes + 1);
  unsigned char* expected = malloc(bytes + 1);
  fill(content, bytes, 100 * type + self->number);
  cenote_request request;
  CHECK(finish(self->comm, cenote_allreduce(self->comm, content, expected, count, type, op, &request),
               &request) == CENOTE_SUCCESS);
  for (int from_device = 0; from_device < 2; ++from_device) {
    for (int to_device = 0; to_device < 2; ++to_device) {
      struct buffer from, to;
      TRY(make(&from, self, from_device, content, bytes));
      TRY(make(&to, self, to_device, NULL, bytes));
      CHECK(finish(self->comm,
                   cenote_allreduce(self->comm, address(&from), address(&to), count, type, op, &request),
                   &request) == CENOTE_SUCCESS);
      TRY(check_and_drop(&to, expected));
      TRY(check_and_drop(&from, content));
    }
  }
  struct buffer both;
  TRY(make(&both, self, 1, content, bytes));
  CHECK(finish(self->comm,
               cenote_allreduce(self->comm, address(&both), address(&both), count, type, op, &request),
               &request) == CENOTE_SUCCESS);
  TRY(check_and_drop(&both, expected));
  free(content);
  free(expected);
  return 0;
}

static int allreduces(struct rank* self) {
  for (int type = CENOTE_FLOAT32; type <= CENOTE_INT64; ++type) {
    for (int op = CENOTE_SUM; op <= CENOTE_AVG; ++op)
      TRY(allreduce_like_the_host(self, 333, (cenote_type)type, (cenote_op)op));
  }
  TRY(allreduce_like_the_host(self, 0, CENOTE_FLOAT32, CENOTE_SUM));
  TRY(allreduce_like_the_host(self, 1, CENOTE_INT64, CENOTE_MAX));
  return allreduce_like_the_host(self, 70001, CENOTE_BFLOAT16, CENOTE_AVG);
}

static int allgather_everywhere(struct rank* self, size_t count, cenote_type type) {
  const size_t bytes = count * sizes[type], all = bytes * self->ranks;
  unsigned char* expected = malloc(all + 1);
  for (uint32_t r = 0; r < self->ranks; ++r) fill(expected + r * bytes, bytes, r);
  const unsigned char* mine = expected + self->number * bytes;
  cenote_request request;
  for (int places = 0; places < 4; ++places) {
    struct buffer from, to;
    TRY(make(&from, self, places & 1, mine, bytes));
    TRY(make(&to, self, places >> 1, NULL, all));
    CHECK(finish(self->comm,
                 cenote_allgather(self->comm, address(&from), address(&to), count, type, &request),
                 &request) == CENOTE_SUCCESS);
    TRY(check_and_drop(&to, expected));
    TRY(check_and_drop(&from, mine));
  }
  unsigned char* own = calloc(1, all + 1);
  if (bytes > 0) memcpy(own + self->number * bytes, mine, bytes);
  struct buffer both;
  TRY(make(&both, self, 1, own, all));
  CHECK(finish(self->comm,
               cenote_allgather(self->comm, (char*)address(&both) + self->number * bytes, address(&both),
                                count, type, &request),
               &request) == CENOTE_SUCCESS);
  TRY(check_and_drop(&both, expected));
  free(own);
  free(expected);
  return 0;
}

static int broadcast_everywhere(struct rank* self, size_t count, cenote_type type, uint32_t root) {
  const size_t bytes = count * sizes[type];
  unsigned char* expected = malloc(bytes + 1);
  fill(expected, bytes, root + 7);
  cenote_request request;
  for (uint32_t host_rank = 0; host_rank <= self->ranks;
       ++host_rank) { /* one rank, or none, has host memory */
    struct buffer buffer;
    TRY(make(&buffer, self, self->number != host_rank, self->number == root ? expected : NULL, bytes));
    CHECK(finish(self->comm, cenote_broadcast(self->comm, address(&buffer), count, type, root, &request),
                 &request) == CENOTE_SUCCESS);
    TRY(check_and_drop(&buffer, expected));
  }
  free(expected);
  return 0;
}

static int copies(struct rank* self) {
  for (int type = CENOTE_FLOAT32; type <= CENOTE_INT64; ++type) {
    TRY(allgather_everywhere(self, 91, (cenote_type)type));
    TRY(broadcast_everywhere(self, 91, (cenote_type)type, (uint32_t)type % self->ranks));
  }
  TRY(allgather_everywhere(self, 40001, CENOTE_FLOAT32));
  return broadcast_everywhere(self, 200001, CENOTE_FLOAT64, self->ranks - 1);
}

/* Work in the stream that makes the inputs is held back: nothing is sent until it is done. */
static int after_a_stream(struct rank* self) {
  enum { count = 5000 };
  struct driver* d = self->driver;
  int32_t *values = malloc(sizeof(int32_t) * count), *zeros = calloc(count, sizeof(int32_t));
  for (int i = 0; i < count; ++i) values[i] = i + (int)self->number;
  void* flag = NULL;
  CHECK(d->host_alloc(&flag, 4, 0) == 0);
  __atomic_store_n((uint32_t*)flag, 0, __ATOMIC_RELEASE);
  struct buffer source, data;
  TRY(make(&source, self, 1, values, sizeof(int32_t) * count));
  TRY(make(&data, self, 1, zeros, sizeof(int32_t) * count));
  void* stream = NULL;
  CHECK(d->stream_create(&stream, 1) == 0);
  CHECK(d->wait_value(stream, (device_ptr)(uintptr_t)flag, 1, 1) == 0);
  CHECK(d->copy_async(data.device + guard, source.device + guard, sizeof(int32_t) * count, stream) == 0);
  cenote_request request;
  CHECK(cenote_allreduce_stream(self->comm, address(&data), address(&data), count, CENOTE_INT32, CENOTE_SUM,
                                stream, &request) == CENOTE_SUCCESS);
  for (int turn = 0; turn < 1000; ++turn) {
    int done = 1;
    CHECK(cenote_test(self->comm, &request, &done) == CENOTE_SUCCESS && !done);
  }
  __atomic_store_n((uint32_t*)flag, 1, __ATOMIC_RELEASE);
  CHECK(cenote_wait(self->comm, &request, 0) == CENOTE_SUCCESS);
  for (int i = 0; i < count; ++i)
    zeros[i] = i * (int)self->ranks + (int)(self->ranks * (self->ranks - 1) / 2);
  TRY(check_and_drop(&data, zeros));
  TRY(check_and_drop(&source, values));

  struct buffer sent, all;
  TRY(make(&sent, self, 1, &self->number, 4));
  TRY(make(&all, self, 0, NULL, 4 * self->ranks));
  CHECK(finish(self->comm,
               cenote_allgather_stream(self->comm, address(&sent), address(&all), 1, CENOTE_INT32, NULL,
                                       &request),
               &request) == CENOTE_SUCCESS);
  const int32_t numbers[4] = {0, 1, 2, 3};
  TRY(check_and_drop(&all, numbers));
  CHECK(finish(self->comm,
               cenote_broadcast_stream(self->comm, address(&sent), 1, CENOTE_INT32, 1, stream, &request),
               &request) == CENOTE_SUCCESS);
  TRY(check_and_drop(&sent, &numbers[1]));
  CHECK(d->stream_destroy(stream) == 0);
  CHECK(d->free_host(flag) == 0);
  free(values);
  free(zeros);
  return 0;
}

/* What can be seen before an operation begins is refused, and the communicator stays well. */
static int refusals(struct rank* self) {
  device_ptr device = 0;
  CHECK(self->driver->alloc(&device, 4096) == 0);
  void* at = (void*)(uintptr_t)device;
  cenote_request request;
  CHECK(cenote_allreduce(self->comm, at, at, 1025, CENOTE_FLOAT32, CENOTE_SUM, &request) ==
        CENOTE_DRIVER_ERROR);
  CHECK(strstr(cenote_last_error(), "4096 of 4100 bytes are memory") != NULL);
  CHECK(strstr(cenote_last_error(), "cuda:") != NULL);
  CHECK(cenote_allreduce(self->comm, at, (char*)at + 4, 100, CENOTE_FLOAT32, CENOTE_SUM, &request) ==
        CENOTE_INVALID_ARGUMENT);
  CHECK(cenote_broadcast_stream(self->comm, at, 1, CENOTE_INT32, 0, (void*)0x1234, &request) ==
        CENOTE_DRIVER_ERROR);
  CHECK(strstr(cenote_last_error(), "CUDA_ERROR_INVALID_HANDLE") != NULL);
  float value = 1;
  CHECK(finish(self->comm,
               cenote_allreduce(self->comm, &value, &value, 1, CENOTE_FLOAT32, CENOTE_SUM, &request),
               &request) == CENOTE_SUCCESS);
  CHECK(value == (float)self->ranks);
  return self->driver->release(device) == 0 ? 0 : __LINE__;
}

/* A buffer that goes away under an operation: the driver's words here, this rank's name and the same words at
 * the others. */
static int freed_too_early(struct rank* self) {
  enum { bytes = 4 << 20 };
  device_ptr device = 0;
  CHECK(self->driver->alloc(&device, bytes) == 0);
  cenote_request request;
  cenote_status ended = CENOTE_SUCCESS;
  if (self->number != 0) pthread_barrier_wait(self->meet); /* no byte is sent before rank 0's is gone */
  ended = cenote_broadcast(self->comm, (void*)(uintptr_t)device, bytes / 4, CENOTE_INT32, 1, &request);
  if (self->number == 0) {
    CHECK(ended == CENOTE_SUCCESS);
    CHECK(self->driver->release(device) == 0);
    pthread_barrier_wait(self->meet);
  }
  ended = finish(self->comm, ended, &request);
  CHECK(ended == (self->number == 0 ? CENOTE_DRIVER_ERROR : CENOTE_PEER_FAILED));
  CHECK(strstr(cenote_last_error(), "rank 0") != NULL);
  CHECK(strstr(cenote_last_error(), "CUDA_ERROR_INVALID_VALUE") != NULL);
  return self->number == 0 || self->driver->release(device) == 0 ? 0 : __LINE__;
}

static int host_only(struct rank* self) {
  double value = self->number + 1;
  cenote_request request;
  CHECK(finish(self->comm,
               cenote_allreduce(self->comm, &value, &value, 1, CENOTE_FLOAT64, CENOTE_SUM, &request),
               &request) == CENOTE_SUCCESS);
  CHECK(value == 3);
  CHECK(cenote_allreduce_stream(self->comm, &value, &value, 1, CENOTE_FLOAT64, CENOTE_SUM, NULL, &request) ==
        CENOTE_NOT_SUPPORTED);
  return 0;
}

/* No driver where it is looked for, one that is not loaded, and none wanted: all memory is the host's. */
static int without_a_driver(struct driver* driver) {
  TRY(run_ranks(driver, "/no/such/libcuda.so.1", "shm", NULL, 2, 1, host_only));
  return run_ranks(driver, "", "shm", NULL, 2, 1, host_only);
}

static int over(struct driver* driver, const char* path, const char* transports, unsigned long long seed) {
  driver->cards(2, (size_t)256 << 20, seed);
  CHECK(driver->init(0) == 0);
  TRY(run_ranks(driver, path, transports, "recursive_doubling", 3, 2, allreduces));
  TRY(run_ranks(driver, path, transports, "ring", 3, 2, allreduces)); /* by kernels on the cards */
  TRY(run_ranks(driver, path, transports, NULL, 3, 2, copies));
  TRY(run_ranks(driver, path, transports, NULL, 3, 2, after_a_stream));
  TRY(run_ranks(driver, path, transports, NULL, 2, 1, refusals));
  return run_ranks(driver, path, transports, NULL, 2, 2, freed_too_early);
}

static int all(const char* path) {
  struct driver driver;
  TRY(open_driver(&driver, path));
  TRY(over(&driver, path, "shm", 0));
  TRY(over(&driver, path, "tcp", 1));
  TRY(without_a_driver(&driver));
  driver.cards(0, 0, 0); /* ends its threads */
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 2) return fprintf(stderr, "usage: %s LIBCUDA\n", argv[0]), 2;
  if (all(argv[1]) != 0) return 1;
  puts("device buffers work from C");
  return 0;
}
