cenote_test(remote_codec_test
  SOURCES unit/remote/codec_test.cpp
  USES cenote_remote)
cenote_test(remote_test
  SOURCES unit/remote/remote_test.cpp
  USES cenote_remote
  TIMEOUT 300)
