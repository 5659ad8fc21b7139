/* Functions of oneDNN's C interface, without dnnl_ before their names. No include guard: gemm_onednn.c includes
 * it with a ROW of its own. Results of type int are a status, 0 when all is well.
 *
 *   ROW(result, name, need, arguments)
 *
 * need: ALWAYS; ON_OPENCL on a GPU only; IN_2 and IN_3 in that version of the library; IF_THERE from 3.4 on. */
ROW(const struct version *, version, ALWAYS, (void))
ROW(const char *, status2str, ALWAYS, (int status))
ROW(int, engine_create, ALWAYS, (void **engine, int kind, size_t index))
ROW(int, engine_destroy, ALWAYS, (void *engine))
ROW(int, ocl_interop_engine_create, ON_OPENCL, (void **engine, cl_device_id device, cl_context context))
ROW(int, stream_create, ALWAYS, (void **stream, void *engine, unsigned flags))
ROW(int, stream_wait, ALWAYS, (void *stream))
ROW(int, stream_destroy, ALWAYS, (void *stream))
ROW(int, ocl_interop_stream_create, ON_OPENCL, (void **stream, void *engine, cl_command_queue queue))
ROW(int, memory_create, ALWAYS, (void **memory, const void *description, void *engine, void *host))
ROW(int, memory_destroy, ALWAYS, (void *memory))
ROW(int, ocl_interop_memory_create, ON_OPENCL,
    (void **memory, const void *description, void *engine, int kind, void *buffer))
ROW(int, primitive_attr_create, ALWAYS, (void **attributes))
ROW(int, primitive_attr_set_post_ops, ALWAYS, (void *attributes, const void *post_ops))
ROW(int, primitive_attr_set_deterministic, IF_THERE, (void *attributes, int wanted))
ROW(int, primitive_attr_set_scratchpad_mode, ALWAYS, (void *attributes, int mode))
ROW(int, primitive_attr_destroy, ALWAYS, (void *attributes))
ROW(int, post_ops_create, ALWAYS, (void **post_ops))
ROW(int, post_ops_append_sum, ALWAYS, (void *post_ops, float scale, int32_t zero_point, int type))
ROW(int, post_ops_destroy, ALWAYS, (void *post_ops))
ROW(int, primitive_desc_query, ALWAYS, (const void *descriptor, int what, int index, void *answer))
ROW(const void *, primitive_desc_query_md, ALWAYS, (const void *descriptor, int what, int index))
ROW(int, primitive_desc_destroy, ALWAYS, (void *descriptor))
ROW(size_t, memory_desc_get_size, ALWAYS, (const void *description))
ROW(int, primitive_create, ALWAYS, (void **primitive, const void *descriptor))
ROW(int, primitive_execute, ALWAYS, (const void *, void *stream, int count, const struct argument *arguments))
ROW(int, primitive_destroy, ALWAYS, (void *primitive))
ROW(int, memory_desc_init_by_strides, IN_2,
    (void *description, int dimensions, const int64_t *sizes, int type, const int64_t *strides))
ROW(int, matmul_desc_init, IN_2, (void *gemm, const void *a, const void *b, const void *bias, const void *c))
ROW(int, primitive_desc_create, IN_2,
    (void **descriptor, const void *gemm, const void *attributes, void *engine, const void *hint))
ROW(int, memory_desc_create_with_strides, IN_3,
    (void **description, int dimensions, const int64_t *sizes, int type, const int64_t *strides))
ROW(int, memory_desc_destroy, IN_3, (void *description))
ROW(int, matmul_primitive_desc_create, IN_3,
    (void **descriptor, void *engine, const void *a, const void *b, const void *bias, const void *c,
     const void *attributes))
