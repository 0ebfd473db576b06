/* What a launcher starts in test_launched.py: a rank that takes part in groups, over the public header alone.
 *   launched_program WORD...
 *     sum GROUP     a group of that name sums the ranks' numbers, and says who it is
 *     anew          another context
 *     wait MS       time that a group has to form, from here on
 *     absent RANK   that rank goes to sleep for 60 s, and never comes
 *     leave RANK    that rank ends with status 7
 *     find          says who it is */
#include <cenote/cenote.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cenote_context* context;
static uint32_t wait_ms = 20000;

static int failed(const char* what, cenote_status status) {
  fprintf(stderr, "%s: %s: %s\n", what, cenote_status_text(status), cenote_last_error());
  cenote_context_destroy(context);
  return 1;
}

static cenote_status found(cenote_launch* launch) {
  memset(launch, 0, sizeof *launch);
  launch->size = sizeof *launch;
  return cenote_launch_find(context, NULL, launch);
}

static cenote_status sum(const char* group) {
  cenote_launch_options options = {.size = sizeof options, .group = group, .init_timeout_ms = wait_ms};
  cenote_launch launch;
  cenote_comm* comm = NULL;
  cenote_request request = {0};
  cenote_status status = cenote_comm_create_launched(context, &options, &comm);
  if (!status) status = found(&launch);
  if (status) return status;
  int64_t value = (int64_t)launch.rank + 1;
  if (cenote_comm_rank(comm) != launch.rank || cenote_comm_ranks(comm) != launch.ranks) abort();
  status = cenote_allreduce(comm, &value, &value, 1, CENOTE_INT64, CENOTE_SUM, &request);
  if (!status) status = cenote_wait(comm, &request, 0);
  if (!status)
    printf("%s: rank %u of %u, %u of %u here, by %s: %lld\n", group, launch.rank, launch.ranks,
           launch.local_rank, launch.local_ranks, launch.launcher, (long long)value);
  cenote_comm_destroy(comm);
  return status;
}

/* Whether `words` were understood; *took of them. */
static int step(char** words, int left, int* took, cenote_status* status) {
  cenote_launch launch;
  *took = 2;
  if (left >= 2 && !strcmp(words[0], "sum")) {
    *status = sum(words[1]);
  } else if (left >= 2 && !strcmp(words[0], "wait")) {
    wait_ms = (uint32_t)atoi(words[1]);
  } else if (left >= 2 && (!strcmp(words[0], "absent") || !strcmp(words[0], "leave"))) {
    *status = found(&launch);
    if (*status || launch.rank != (uint32_t)atoi(words[1])) return 1;
    if (!strcmp(words[0], "leave")) exit(7);
    sleep(60);
  } else if (!strcmp(words[0], "anew")) {
    *took = 1;
    cenote_context_destroy(context);
    *status = cenote_context_create(NULL, &context);
  } else if (!strcmp(words[0], "find")) {
    *took = 1;
    *status = found(&launch);
    if (!*status) printf("rank %u of %u by %s\n", launch.rank, launch.ranks, launch.launcher);
  } else {
    return 0;
  }
  return 1;
}

int main(int argc, char** argv) {
  cenote_status status = cenote_context_create(NULL, &context);
  if (status) return failed("context", status);
  for (int i = 1, took = 0; i < argc; i += took) {
    if (!step(argv + i, argc - i, &took, &status)) return fprintf(stderr, "%s?\n", argv[i]), 2;
    if (status) return failed(argv[i], status);
  }
  cenote_context_destroy(context);
  return 0;
}
