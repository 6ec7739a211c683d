// The wheel of CUDA's headers has no compiler headers; driver_types.h needs only these words of its compiler.
#pragma once
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __host__
#define __device__
#define __cudart_builtin__
#define CUDARTAPI
#define CUDART_CB
