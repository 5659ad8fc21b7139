/* What the parts of the interpreter know of each other: instructions as they are executed, and the warps that
 * execute them. */
#pragma once

#include "tests/emulator/ptx.h"

/* A register of a lane: 32 bits, also for predicates (0 or 1) and 16 bits (of which the upper half means nothing);
 * or 64 bits. The register file of a warp holds the lanes of a register side by side. */
union word {
    uint32_t u;
    int32_t s;
    float f;
};
union wide {
    uint64_t u;
    int64_t s;
    double f;
};

enum space { SPACE_GENERIC, SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL, SPACE_CONST, SPACE_PARAM, SPACE_CALL };

/* Generic addresses of local memory and of private memory: above those of the host. */
#define SHARED_WINDOW ((uint64_t)1 << 62)
#define LOCAL_WINDOW  ((uint64_t)1 << 61)

enum flow {
    FLOW_NEXT,
    FLOW_BRANCH,
    FLOW_EXIT,
    FLOW_WARP,       /* all lanes of the warp come here together */
    FLOW_WARP_FENCE, /* bar.warp.sync: also orders their accesses to local memory */
    FLOW_GROUP,      /* bar.sync */
};

/* Relations of two numbers, for each of which a comparison is true or false: unordered if one is NaN. */
enum relation { IS_LESS = 1, IS_EQUAL = 2, IS_GREATER = 4, IS_UNORDERED = 8 };

struct warp;
struct instruction;
typedef void execute_function(struct warp *warp, const struct instruction *x, uint64_t lanes);

struct instruction {
    execute_function *execute;
    const uint32_t *operands; /* places in the register file, in bytes; the destination first */
    int64_t offset;           /* of an address */
    int32_t guard;            /* the predicate's place, -1 without */
    uint32_t target;          /* of a branch */
    bool guard_negated;
    bool is_target;                   /* of a branch */
    bool orders_local, orders_global; /* accesses to which memory a barrier orders */
    bool address_is_wide;             /* the address has 64 bits */
    bool has_base;                    /* an address is a register and not only an offset */
    uint8_t space;                    /* enum space */
    uint8_t bytes;                    /* of an element in memory */
    uint8_t count;                    /* of elements */
    uint8_t flow;                     /* enum flow */
    uint8_t relations;                /* of enum relation: a comparison is true for these */
    bool is_signed;                   /* what is loaded is extended by its sign */
    bool holds_wide[4];               /* registers of 64 bits, of what is loaded or stored */
    const char *file;                 /* of the OpenCL text, NULL if it is not known */
    unsigned line;
    const char *text; /* the statement */
};

struct symbol {
    char *name;
    uint64_t at; /* offset in the space */
    enum space space;
};

struct parameter {
    size_t at, bytes;
    bool is_pointer;
};

struct ptx_kernel {
    char *name;
    unsigned lanes;
    struct parameter parameters[PTX_PARAMETERS_MOST];
    size_t parameter_count, parameter_bytes;
    struct instruction *code;
    size_t code_count;
    size_t register_bytes;                        /* the register file of a warp */
    size_t shared_bytes, local_bytes, call_bytes; /* of a group; of a lane; of a lane */
    struct constant *constants;                   /* registers that keep a value */
    size_t constant_count;
    const char *const_memory; /* of the module */
    size_t const_bytes;
};

/* Registers that are set when a group begins: an immediate value or a special register. */
enum special { SPECIAL_NONE, SPECIAL_TID, SPECIAL_NTID, SPECIAL_CTAID, SPECIAL_NCTAID, SPECIAL_LANE };
struct constant {
    uint32_t at;
    bool is_wide;
    enum special special;
    unsigned dimension;
    uint64_t value;
};

/* Lanes of a warp at one instruction. */
struct split {
    uint64_t lanes;
    uint32_t at;
    bool waits; /* for the other lanes, or for the other warps */
};

/* A copy that cp.async has begun. */
struct copy {
    uint32_t to;
    const char *from;
    uint8_t lane, bytes; /* the others of 16 are zero */
    bool is_committed;
    uint32_t group; /* of the lane */
};

struct group;

struct warp {
    struct group *group;
    const struct ptx_kernel *kernel;
    unsigned index;  /* in the group */
    unsigned count;  /* of lanes */
    uint64_t full;   /* all lanes */
    uint64_t all;    /* those that the warp began with: the last warp of a group may have fewer */
    uint64_t live;   /* that have not returned */
    uint64_t steps;  /* instructions so far */
    uint32_t fences; /* bar.warp.sync so far */
    char *registers; /* register_bytes */
    char *local;     /* private memory, local_bytes of each lane */
    char *call;      /* arguments and results of functions, call_bytes of each lane */
    struct split splits[PTX_LANES_MOST];
    unsigned split_count;
    struct copy *copies;
    size_t copy_count, copy_capacity;
    uint32_t committed[PTX_LANES_MOST]; /* groups of copies of a lane */
    const struct ptx_range *range;      /* that was touched last */
};

/* ---- tables */

/* An opcode, with _ for the dots of its name. Its operands are registers and numbers, one letter each, then _, the
 * destination first: w 32 bits, h 16 bits, p a predicate, d 64 bits. `execute` is NULL in what is returned if there
 * is none of this name. */
struct opcode {
    const char *name;
    execute_function *execute;
    const char *operands;
    enum flow flow;
};
struct opcode opcode_find(const char *name);

/* mov that puts two registers together to one, or with `splits` takes one apart. */
struct opcode opcode_joining(const char *name, bool splits);

/* setp of a type, NULL if it is not known; the letter of its sources. */
execute_function *comparison_find(const char *type, char *letter);

/* A function that is not PTX but this machine's: matrix cores of other vendors. Its operands are the places of the
 * result and of its arguments in the lanes' `call` memory. NULL if there is none of this name. */
execute_function *function_find(const char *name);

execute_function execute_load, execute_store, execute_copy, execute_copy_commit, execute_copy_wait, execute_shuffle,
    execute_mma_bf16, execute_mma_fp16, execute_ldmatrix, execute_ldmatrix_transposed;

/* ---- memory */

/* Where the lane's access of so many bytes goes; a place of no meaning after a fault. */
char *memory_place(struct warp *warp, const struct instruction *x, unsigned lane, enum space space,
                   uint64_t address, size_t bytes, bool writes);

/* Ends the launch with a fault at this instruction. */
void fault(struct warp *warp, const struct instruction *x, unsigned lane, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Copies of cp.async to local memory: as one begins, and when it is waited for. */
void copy_begins(struct warp *warp, const struct instruction *x, unsigned lane, uint32_t to);
void copy_ends(struct warp *warp, const struct copy *copy);

#define LANE_BIT(lane) ((uint64_t)1 << (lane))
