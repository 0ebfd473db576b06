cenote_test(transports_test SOURCES
    unit/transports/transfer_test.cpp unit/transports/small_put_test.cpp unit/transports/connect_test.cpp
    unit/transports/faults_test.cpp unit/transports/wait_test.cpp unit/transports/fabric_test.cpp unit/transports/reception_test.cpp
  USES cenote_transports LABELS unit nogrpc TIMEOUT 300)
cenote_test(transports_death_test SOURCES multi/transports/death_test.cpp
  USES cenote_transports LABELS multi nogrpc TIMEOUT 120)
cenote_test(transports_farewell_test SOURCES multi/transports/farewell_test.cpp
  USES cenote_transports LABELS multi nogrpc TIMEOUT 240)
cenote_test(transports_hostile_test
  SOURCES unit/transports/hostile_tcp_test.cpp unit/transports/hostile_shm_test.cpp
    unit/transports/hostile_small_puts_test.cpp
  USES cenote_transports LABELS unit nogrpc TIMEOUT 300)
