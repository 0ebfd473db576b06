/* Element types and reductions: shared by the C ABI, the C++ API and every room of the house.
 * The values are part of the ABI and of the wire; new ones are added at the end. */
#ifndef CENOTE_TYPES_H
#define CENOTE_TYPES_H

#ifdef __cplusplus
extern "C" {
#endif

/* In C++ every int is a value of such an enum (only those listed mean anything), so that whatever a C caller
 * passes can be looked at. */
#ifdef __cplusplus
#define CENOTE_ENUM(name) enum name : int
#else
#define CENOTE_ENUM(name) enum name
#endif

/** Type of one element. */
typedef CENOTE_ENUM(cenote_type){CENOTE_FLOAT32 = 0,  CENOTE_FLOAT64 = 1,
                                 CENOTE_FLOAT16 = 2,  /**< IEEE 754 binary16 */
                                 CENOTE_BFLOAT16 = 3, /**< upper half of binary32 */
                                 CENOTE_INT32 = 4,    CENOTE_INT64 = 5} cenote_type;

/** How two elements become one. */
typedef CENOTE_ENUM(cenote_op){
    CENOTE_SUM = 0, CENOTE_MIN = 1, CENOTE_MAX = 2,
    CENOTE_AVG =
        3 /**< the sum divided by the number of ranks, once, at the end; integers round toward zero */
} cenote_op;

#ifdef __cplusplus
}
#endif
#endif
