"""Kinds of GPU kernels, by names that profilers have recorded."""

import pytest
from stepscope.evaluation.kernel_kinds import kind_of


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32", "matrix products"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTT", "matrix products"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1", "matrix products"),
        ("triton_tem_fused_mm_3", "matrix products"),
        (
            "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_128x2>",
            "matrix products",
        ),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(...)", "attention"),
        ("triton_red_fused_native_layer_norm_5", "fused by torch.compile"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>", "normalisation"),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
            "normalisation",
        ),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<__half>", "convolution"),
        ("sm90_xmma_wgrad_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc", "convolution"),
        (
            "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>",
            "softmax and loss",
        ),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
            "optimizer",
        ),
        (
            "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float>",
            "dropout and random numbers",
        ),
        (
            "void at::native::indexFuncLargeIndex<float, long, unsigned int, 2, 2, -2, true>",
            "embeddings and indices",
        ),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "reductions"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
            "elementwise",
        ),
        ("my_own_kernel", "other kernels"),
    ],
)
def test_a_kernel_is_of_the_kind_that_its_name_says(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind
