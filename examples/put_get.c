/* Ranks that are processes write into each other's memory: each puts a greeting into the next rank's window
 * with a signal, reads the one it was sent, and gets back what it has put.
 *   put_get 0 3        prints an id; in two other terminals:
 *   put_get 1 3 ID
 *   put_get 2 3 ID */
#include <cenote/cenote.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, cenote_last_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc < 3) return fprintf(stderr, "usage: %s RANK RANKS [ID]\n", argv[0]), 2;
  cenote_context* context;
  cenote_comm* comm;
  cenote_window* window;
  cenote_request request = {0};
  cenote_comm_options options = {.size = sizeof options};
  options.rank = (uint32_t)atoi(argv[1]);
  options.ranks = (uint32_t)atoi(argv[2]);
  if (cenote_context_create(NULL, &context)) return failed("context");
  if (options.rank == 0 && cenote_unique_id_create(context, &options.id)) return failed("unique id");
  if (options.rank == 0) printf("%s\n", options.id.text), fflush(stdout);
  if (options.rank != 0 && argc > 3) snprintf(options.id.text, sizeof options.id.text, "%s", argv[3]);
  if (cenote_comm_create(context, &options, &comm)) return failed("communicator");

  /* Every rank gives 64 bytes that the others may write and read. */
  cenote_window_options part = {.size = sizeof part, .bytes = 64};
  if (cenote_window_create(comm, &part, &window)) return failed("window");

  const uint32_t next = (options.rank + 1) % options.ranks;
  const uint32_t before = (options.rank + options.ranks - 1) % options.ranks;
  char mine[64], back[64];
  memset(mine, 0, sizeof mine);
  snprintf(mine, sizeof mine, "rank %u greets rank %u", options.rank, next);
  if (cenote_put(window, next, 0, mine, sizeof mine, 0, &request)) return failed("put");
  if (cenote_wait(comm, &request, 0)) return failed("wait for the put");

  /* Counter 0 of the rank before us: what it put before has arrived. */
  if (cenote_signal_wait(comm, before, 0, 1, 0)) return failed("wait for the signal");
  printf("rank %u was told: %s\n", options.rank, (const char*)cenote_window_memory(window));

  if (cenote_get(window, next, 0, back, sizeof back, &request)) return failed("get");
  if (cenote_wait(comm, &request, 0)) return failed("wait for the get");
  if (memcmp(mine, back, sizeof mine) != 0) return fprintf(stderr, "another text came back\n"), 1;
  printf("rank %u got back what it had put\n", options.rank);

  /* Nobody ends its window before all have read. */
  if (cenote_barrier(comm, &request) || cenote_wait(comm, &request, 0)) return failed("barrier");
  cenote_window_destroy(window);
  cenote_comm_destroy(comm);
  cenote_context_destroy(context);
  return 0;
}
