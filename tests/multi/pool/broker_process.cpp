// A broker as a process, for tests that kill it: broker_process STATE_DIR LISTEN CERTIFICATES. Writes its
// endpoint, or its error, on a line; ends when its input does.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "pool/broker/server.h"
#include "pool/proto/channel.h"
#include "runtime/log.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  cenote::pool::quiet_grpc();
  cenote::pool::BrokerServerOptions options;
  options.state_dir = argv[1];
  options.listen = argv[2];
  options.certificate = cenote::pool::tls::files_of(argv[3], "main", cenote::pool::tls::Role::broker);
  options.policy.agent_timeout_ms = 600'000;
  options.policy.agent_dead_ms = 600'000;
  options.policy.snapshot_every = 11;
  const auto log = cenote::Logger::silent();
  const auto server = cenote::pool::BrokerServer::start(options, *log);
  std::printf("%s\n", server ? (*server)->endpoint().c_str() : server.error().message().c_str());
  std::fflush(stdout);
  if (!server) return 1;
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
