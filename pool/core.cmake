# cenote_pool_core: the broker without the network. Built in every preset; the thread sanitizer sees all of it.
cenote_room(pool_core
  SOURCES lease_token.cpp key_file.cpp call_gate.cpp broker/core.cpp broker/core_views.cpp broker/core_renewals.cpp
          broker/core_metrics.cpp broker/broker_metrics.cpp broker/journal.cpp state/state.cpp state/codec.cpp
          scheduler/place.cpp store/sqlite.cpp tls/certificates.cpp tls/credentials.cpp
  USES cenote_runtime OpenSSL::Crypto SQLite::SQLite3)
