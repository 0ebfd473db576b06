// DataType and ReduceOp: the C enums of cenote/types.h under C++ names, with sizes and texts.
#pragma once

#include <cstddef>
#include <string_view>

#include "cenote/types.h"

namespace cenote {

using DataType = cenote_type;
using ReduceOp = cenote_op;

/// Bytes of one element; 0 for a value that is no type.
constexpr std::size_t size_of(DataType type) {
  switch (type) {
    case CENOTE_FLOAT64:
    case CENOTE_INT64:
      return 8;
    case CENOTE_FLOAT32:
    case CENOTE_INT32:
      return 4;
    case CENOTE_FLOAT16:
    case CENOTE_BFLOAT16:
      return 2;
  }
  return 0;
}

constexpr std::string_view to_string(DataType type) {
  switch (type) {
    case CENOTE_FLOAT32:
      return "float32";
    case CENOTE_FLOAT64:
      return "float64";
    case CENOTE_FLOAT16:
      return "float16";
    case CENOTE_BFLOAT16:
      return "bfloat16";
    case CENOTE_INT32:
      return "int32";
    case CENOTE_INT64:
      return "int64";
  }
  return "unknown type";
}

constexpr std::string_view to_string(ReduceOp op) {
  switch (op) {
    case CENOTE_SUM:
      return "sum";
    case CENOTE_MIN:
      return "min";
    case CENOTE_MAX:
      return "max";
    case CENOTE_AVG:
      return "avg";
  }
  return "unknown reduction";
}

}  // namespace cenote
