cenote_test(transports_test SOURCES
    unit/transports/transfer_test.cpp
  USES cenote_transports LABELS unit nogrpc TIMEOUT 300)
