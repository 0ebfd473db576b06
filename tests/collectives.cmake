cenote_test(collectives_schedule_test
  SOURCES unit/collectives/schedule_test.cpp unit/collectives/verifier_test.cpp unit/collectives/mutation_test.cpp
    unit/collectives/reduction_order_test.cpp
  USES cenote_collectives)
cenote_test(collectives_reduce_test
  SOURCES unit/collectives/reduce_test.cpp
  USES cenote_collectives)
cenote_test(collectives_executor_test
  SOURCES unit/collectives/executor_test.cpp
  USES cenote_collectives)
cenote_test(collectives_communicator_test
  SOURCES multi/collectives/communicator_test.cpp
  USES cenote_collectives LABELS multi)
cenote_test(collectives_failure_test
  SOURCES multi/collectives/failure_test.cpp
  USES cenote_collectives LABELS multi)
