/* The driver for Vulkan by OpenCL's own calls: large buffers, launches larger than a device takes at once, many
 * arguments, copies through more than the staging memory, fills of any bytes, queues side by side, times, and what
 * it refuses. */
#include "tests/support/test.h"

#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#include "runtime/device/device.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cl_device_id device;
static cl_context context;
static cl_command_queue queues[2];
static cl_program program;

/* `wide` has more bytes of arguments than push constants have room for: 320, and 256 are common. The order of
 * launches of `step` shows in what they leave. */
static const char text[] =
    "__kernel __attribute__((reqd_work_group_size(2, 1, 1))) void places(__global uint *to, uint count) {\n"
    "    const size_t i = get_global_id(0);\n"
    "    if (i < count && get_group_id(0) * 2 + get_local_id(0) == i) to[i] = (uint)i ^ 0x5a5a5a5au;\n"
    "}\n"
    "#define FOUR(n) ulong a##n, ulong b##n, ulong c##n, ulong d##n\n"
    "#define STORE(n) to[4 * n] = a##n; to[4 * n + 1] = b##n; to[4 * n + 2] = c##n; to[4 * n + 3] = d##n\n"
    "__kernel void wide(__global ulong *to, FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), "
    "FOUR(7),\n"
    "                   FOUR(8), FOUR(9), __global const ulong *or_none) {\n"
    "    if (get_global_id(0) == 0) {\n"
    "        STORE(0); STORE(1); STORE(2); STORE(3); STORE(4); STORE(5); STORE(6); STORE(7); STORE(8); STORE(9);\n"
    "    } else if (a0 == 0) {\n" /* never: clspv wants to see each pointer used */
    "        to[0] = *or_none;\n"
    "    }\n"
    "}\n"
    "__kernel void step(__global uint *to, uint what, uint count) {\n"
    "    if (get_global_id(0) < count) to[get_global_id(0)] = to[get_global_id(0)] * 3 + what;\n"
    "}\n"
    "__kernel void ends(__global uint *to, uint what, uint count) {\n"
    "    const uint i = get_global_id(0);\n"
    "    to[i] = what + i;\n"
    "    to[count - 1 - i] = what * i;\n"
    "}\n";

#define GOOD(call) assert_int_equal(call, CL_SUCCESS)

static cl_mem create_buffer(size_t bytes) {
    cl_int code;
    cl_mem buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    return buffer;
}

static cl_kernel create_kernel(const char *name) {
    cl_int code;
    cl_kernel kernel = clCreateKernel(program, name, &code);
    assert_int_equal(code, CL_SUCCESS);
    return kernel;
}

static void launch(cl_command_queue queue, cl_kernel kernel, size_t items, size_t local, cl_event *event) {
    GOOD(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, &local, 0, NULL, event));
}

/* As far as the device says that a buffer may reach, which may be further than a binding does: 128 MiB on
 * lavapipe. */
UNIT_TEST(kernels_reach_the_end_of_large_buffers) {
    enum { ENDS = 64, LARGE = 136 << 20 };
    cl_uint ends[2 * ENDS] = {0}, what = 5, count = LARGE / sizeof *ends;
    cl_ulong most;
    GOOD(clGetDeviceInfo(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof most, &most, NULL));
    count = most < LARGE ? (cl_uint)(most / sizeof *ends) : count;
    cl_mem buffer = create_buffer((size_t)count * sizeof *ends);
    cl_kernel kernel = create_kernel("ends");
    GOOD(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    GOOD(clSetKernelArg(kernel, 1, sizeof what, &what));
    GOOD(clSetKernelArg(kernel, 2, sizeof count, &count));
    launch(queues[0], kernel, ENDS, ENDS, NULL);
    GOOD(clEnqueueReadBuffer(queues[0], buffer, CL_TRUE, 0, sizeof ends / 2, ends, 0, NULL, NULL));
    GOOD(clEnqueueReadBuffer(queues[0], buffer, CL_TRUE, (size_t)count * sizeof *ends - sizeof ends / 2,
                             sizeof ends / 2, ends + ENDS, 0, NULL, NULL));
    for (cl_uint i = 0; i < ENDS; i++) {
        assert_int_equal(ends[i], what + i);
        assert_int_equal(ends[2 * ENDS - 1 - i], what * i);
    }
    GOOD(clReleaseKernel(kernel));
    GOOD(clReleaseMemObject(buffer));
}

/* Numbers of work-items and of groups are those of the whole launch; 65535 groups are what Vulkan promises. */
UNIT_TEST(launches_may_have_many_groups) {
    static const cl_uint groups[] = {1, 65535, 65536, 200001};
    for (size_t k = 0; k < COUNT(groups); k++) {
        const cl_uint count = 2 * groups[k];
        cl_mem buffer = create_buffer(count * sizeof(cl_uint));
        cl_kernel kernel = create_kernel("places");
        FREED cl_uint *got = calloc(count, sizeof *got);
        assert_non_null(got);
        GOOD(clEnqueueWriteBuffer(queues[0], buffer, CL_TRUE, 0, count * sizeof *got, got, 0, NULL, NULL));
        GOOD(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
        GOOD(clSetKernelArg(kernel, 1, sizeof count, &count));
        launch(queues[0], kernel, count, 2, NULL);
        GOOD(clEnqueueReadBuffer(queues[0], buffer, CL_TRUE, 0, count * sizeof *got, got, 0, NULL, NULL));
        for (cl_uint i = 0; i < count; i++) {
            assert_int_equal(got[i], i ^ 0x5a5a5a5aU);
        }
        GOOD(clReleaseKernel(kernel));
        GOOD(clReleaseMemObject(buffer));
    }
}

/* Each launch has the arguments that were set when it was put into the queue, however many are under way. */
UNIT_TEST(arguments_may_be_many) {
    enum { LAUNCHES = 100, ARGUMENTS = 40 };
    cl_mem buffers[LAUNCHES];
    cl_kernel kernel = create_kernel("wide");
    for (cl_ulong k = 0; k < LAUNCHES; k++) {
        buffers[k] = create_buffer(ARGUMENTS * sizeof(cl_ulong));
        GOOD(clSetKernelArg(kernel, 0, sizeof(cl_mem), &buffers[k]));
        for (cl_uint i = 0; i < ARGUMENTS; i++) {
            const cl_ulong value = k * ARGUMENTS + i + (UINT64_C(1) << 40);
            GOOD(clSetKernelArg(kernel, 1 + i, sizeof value, &value));
        }
        GOOD(clSetKernelArg(kernel, 1 + ARGUMENTS, sizeof(cl_mem), NULL));
        launch(queues[0], kernel, 64, 64, NULL);
    }
    for (cl_ulong k = 0; k < LAUNCHES; k++) {
        cl_ulong got[ARGUMENTS];
        GOOD(clEnqueueReadBuffer(queues[0], buffers[k], CL_TRUE, 0, sizeof got, got, 0, NULL, NULL));
        for (cl_uint i = 0; i < ARGUMENTS; i++) {
            assert_true(got[i] == k * ARGUMENTS + i + (UINT64_C(1) << 40));
        }
        GOOD(clReleaseMemObject(buffers[k]));
    }
    GOOD(clReleaseKernel(kernel));
}

/* More than the staging memory, at places that are no multiples of anything. */
UNIT_TEST(copies_may_be_large_and_anywhere) {
    const size_t bytes = (20 << 20) + 3, from = 5, copied = (9 << 20) + 1;
    FREED unsigned char *sent = malloc(bytes), *got = malloc(bytes);
    assert_true(sent && got);
    for (size_t i = 0; i < bytes; i++) {
        sent[i] = (unsigned char)(i * 2654435761U >> 24);
    }
    cl_mem one = create_buffer(bytes), other = create_buffer(bytes);
    GOOD(clEnqueueWriteBuffer(queues[0], one, CL_FALSE, 0, bytes, sent, 0, NULL, NULL));
    GOOD(clEnqueueCopyBuffer(queues[0], one, other, from, 2, copied, 0, NULL, NULL));
    GOOD(clEnqueueReadBuffer(queues[0], one, CL_TRUE, 0, bytes, got, 0, NULL, NULL));
    assert_memory_equal(got, sent, bytes);
    GOOD(clEnqueueReadBuffer(queues[0], other, CL_TRUE, 2, copied, got, 0, NULL, NULL));
    assert_memory_equal(got, sent + from, copied);
    GOOD(clReleaseMemObject(one));
    GOOD(clReleaseMemObject(other));
}

/* What is to be copied has its place in the staging memory until it is, also where room for another batch is waited
 * for between the two. */
UNIT_TEST(writes_do_not_meet_in_staging_memory) {
    enum { BATCHES_UNDER_WAY = 8 };
    const cl_uint zero = 0, sent[2] = {0x11111111, 0x22222222};
    cl_uint got[2] = {0, 0};
    cl_mem buffer = create_buffer(64), targets[2] = {create_buffer(4), create_buffer(4)};
    for (int i = 0; i < BATCHES_UNDER_WAY; i++) {
        GOOD(clEnqueueFillBuffer(queues[0], buffer, &zero, 4, 0, 4, 0, NULL, NULL));
        GOOD(clFlush(queues[0]));
    }
    usleep(200000); /* all are done, but nobody has looked */
    for (int i = 0; i < 2; i++) {
        GOOD(clEnqueueWriteBuffer(queues[0], targets[i], CL_FALSE, 0, 4, &sent[i], 0, NULL, NULL));
    }
    for (int i = 0; i < 2; i++) {
        GOOD(clEnqueueReadBuffer(queues[0], targets[i], CL_TRUE, 0, 4, &got[i], 0, NULL, NULL));
        assert_int_equal(got[i], sent[i]);
        GOOD(clReleaseMemObject(targets[i]));
    }
    GOOD(clReleaseMemObject(buffer));
}

UNIT_TEST(fills_write_what_they_are_to_and_no_more) {
    unsigned char got[64], expected[64];
    const unsigned char pattern[4] = {1, 2, 3, 4}, nothing = 0xee;
    cl_mem buffer = create_buffer(sizeof got);
    for (size_t size = 1; size <= 4; size *= 2) {
        for (size_t first = 0; first < 8; first += size) {
            for (size_t bytes = size; first + bytes <= sizeof got; bytes += 3 * size) {
                memset(expected, nothing, sizeof expected);
                for (size_t i = 0; i < bytes; i++) {
                    expected[first + i] = pattern[i % size];
                }
                GOOD(clEnqueueFillBuffer(queues[0], buffer, &nothing, 1, 0, sizeof got, 0, NULL, NULL));
                GOOD(clEnqueueFillBuffer(queues[0], buffer, pattern, size, first, bytes, 0, NULL, NULL));
                GOOD(clEnqueueReadBuffer(queues[0], buffer, CL_TRUE, 0, sizeof got, got, 0, NULL, NULL));
                assert_memory_equal(got, expected, sizeof got);
            }
        }
    }
    GOOD(clReleaseMemObject(buffer));
}

/* Launches in two queues, each behind the one before in the other, and nobody waits meanwhile; times are those of a
 * clock that does not run backwards. */
UNIT_TEST(queues_wait_for_events_and_report_times) {
    enum { COUNT = 1000, ROUNDS = 50 };
    const cl_uint count = COUNT, zero = 0;
    const size_t items = 1024, local = 64;
    cl_uint got[COUNT], expected = 0;
    cl_mem buffer = create_buffer(sizeof got);
    cl_kernel kernel = create_kernel("step");
    cl_event events[ROUNDS + 1];
    cl_ulong last = 0;
    GOOD(clEnqueueFillBuffer(queues[1], buffer, &zero, sizeof zero, 0, sizeof got, 0, NULL, &events[0]));
    GOOD(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    GOOD(clSetKernelArg(kernel, 2, sizeof count, &count));
    for (cl_uint i = 0; i < ROUNDS; i++) {
        GOOD(clSetKernelArg(kernel, 1, sizeof i, &i));
        GOOD(clEnqueueNDRangeKernel(queues[i % 2], kernel, 1, NULL, &items, &local, 1, &events[i], &events[i + 1]));
        expected = expected * 3 + i;
    }
    GOOD(clEnqueueReadBuffer(queues[0], buffer, CL_TRUE, 0, sizeof got, got, 1, &events[ROUNDS], NULL));
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(got[i], expected);
    }
    for (cl_uint i = 0; i <= ROUNDS; i++) {
        cl_ulong start, end;
        GOOD(clGetEventProfilingInfo(events[i], CL_PROFILING_COMMAND_START, sizeof start, &start, NULL));
        GOOD(clGetEventProfilingInfo(events[i], CL_PROFILING_COMMAND_END, sizeof end, &end, NULL));
        assert_true(last <= start && start <= end);
        last = end;
        GOOD(clReleaseEvent(events[i]));
    }
    GOOD(clReleaseKernel(kernel));
    GOOD(clReleaseMemObject(buffer));
}

/* Pinned memory: seen by the host, and copied without staging. */
UNIT_TEST(memory_for_the_host_is_mapped) {
    enum { BYTES = 1 << 20 };
    cl_int code;
    cl_mem pinned = clCreateBuffer(context, CL_MEM_ALLOC_HOST_PTR, BYTES, NULL, &code),
           buffer = create_buffer(BYTES);
    GOOD(code);
    unsigned char *host =
        clEnqueueMapBuffer(queues[0], pinned, CL_TRUE, CL_MAP_WRITE, 0, BYTES, 0, NULL, NULL, &code);
    GOOD(code);
    for (size_t i = 0; i < BYTES; i++) {
        host[i] = (unsigned char)(i * 7);
    }
    GOOD(clEnqueueWriteBuffer(queues[0], buffer, CL_TRUE, 0, BYTES, host, 0, NULL, NULL));
    memset(host, 0, BYTES);
    GOOD(clEnqueueReadBuffer(queues[1], buffer, CL_TRUE, 0, BYTES, host, 0, NULL, NULL));
    for (size_t i = 0; i < BYTES; i++) {
        assert_int_equal(host[i], (unsigned char)(i * 7));
    }
    GOOD(clEnqueueUnmapMemObject(queues[0], pinned, host, 0, NULL, NULL));
    GOOD(clReleaseMemObject(pinned));
    GOOD(clReleaseMemObject(buffer));
}

UNIT_TEST(wrong_calls_are_refused) {
    const size_t odd = 65, local = 64, three = 3;
    cl_int code;
    cl_ulong most;
    cl_uint number = 0;
    cl_mem buffer = create_buffer(100);
    cl_kernel kernel = create_kernel("places");
    GOOD(clGetDeviceInfo(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof most, &most, NULL));
    assert_null(clCreateBuffer(context, CL_MEM_READ_WRITE, (size_t)most + 16, NULL, &code));
    assert_int_equal(code, CL_INVALID_BUFFER_SIZE);
    assert_null(clCreateBuffer(context, CL_MEM_READ_WRITE, 0, NULL, &code));
    assert_null(clCreateKernel(program, "nothing", &code));
    assert_int_equal(code, CL_INVALID_KERNEL_NAME);
    assert_int_equal(clSetKernelArg(kernel, 2, sizeof number, &number), CL_INVALID_ARG_INDEX);
    assert_int_equal(clSetKernelArg(kernel, 1, 1, &number), CL_INVALID_ARG_SIZE);
    assert_int_equal(clEnqueueNDRangeKernel(queues[0], kernel, 1, NULL, &odd, &local, 0, NULL, NULL),
                     CL_INVALID_WORK_GROUP_SIZE);
    assert_int_equal(clEnqueueNDRangeKernel(queues[0], kernel, 1, NULL, &three, &three, 0, NULL, NULL),
                     CL_INVALID_WORK_GROUP_SIZE); /* it must be 2 */
    assert_int_equal(clEnqueueReadBuffer(queues[0], buffer, CL_TRUE, 99, 2, &number, 0, NULL, NULL),
                     CL_INVALID_VALUE);
    assert_int_equal(clEnqueueCopyBuffer(queues[0], buffer, buffer, 0, 5, 10, 0, NULL, NULL), CL_MEM_COPY_OVERLAP);
    GOOD(clReleaseKernel(kernel));
    GOOD(clReleaseMemObject(buffer));
}

static int build(void) {
    cl_int code;
    char log[4000] = "";
    const char *source = text;
    program = clCreateProgramWithSource(context, 1, &source, NULL, &code);
    if (code == CL_SUCCESS && (code = clBuildProgram(program, 1, &device, "-cl-std=CL1.2", NULL, NULL))) {
        clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL);
        fprintf(stderr, "%s\n", log);
    }
    return code;
}

static int begin(void **state) {
    (void)state;
    cl_int code = CL_SUCCESS;
    cl_platform_id platform = vulkan_driver_platform();
    if (!platform || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL)) {
        return -1;
    }
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    for (int i = 0; i < 2 && code == CL_SUCCESS; i++) {
        queues[i] = clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &code);
    }
    return code == CL_SUCCESS ? build() : code;
}

/* In the order in which programs do it: what is still kept goes with what keeps it. */
static int end(void **state) {
    (void)state;
    return clReleaseContext(context) || clReleaseProgram(program) || clReleaseCommandQueue(queues[0]) ||
           clReleaseCommandQueue(queues[1]);
}

UNIT_TEST_MAIN(begin, end)
