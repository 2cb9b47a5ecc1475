"""Parameter counts of every supported type: by class default, or by the figures of one config."""

from typing import Any

import pytest

from finegauge.catalogue.models import model
from finegauge.model.families import architecture, supported_model_types
from tests.oracle.configs import CONFIGS

# Parameters of the transformers 5.23 class built from its own defaults, on the meta device.
BY_DEFAULT = {
    "bart": 406_291_456,
    "mbart": 406_295_552,
    "m2m_100": 483_905_536,
    "pegasus": 406_287_360,
    "marian": 414_307_328,
    "glm4v": 10_292_777_472,
    "glm46v": 10_292_777_472,
    "glm4v_moe": 104_372_866_880,
    "idefics2": 8_061_394_944,
    "mt5": 172_119_424,
    "t5": 60_506_624,
    "whisper": 37_760_640,
    "modernbert": 149_655_232,
    "roberta": 124_696_665,
    "xlm-roberta": 109_514_298,
    "afmoe": 19_232_600_000,
    "apertus": 6_979_596_352,
    "arcee": 4_022_766_080,
    "aria_text": 18_517_069_824,
    "axk1": 518_983_052_288,
    "bailing_hybrid": 124_414_191_072,
    "bamba": 9_992_765_440,
    "bert": 109_514_298,
    "biogpt": 346_763_264,
    "bloom": 16_156_544,
    "camembert": 109_514_298,
    "codegen": 6_050_882_784,
    "cohere": 34_980_831_232,
    "cohere2": 34_980_831_232,
    "cohere2_moe": 190_004_928_512,
    "cwm": 32_581_097_472,
    "deepseek_v3": 671_026_404_352,
    "deepseek_v32": 671_877_929_216,
    "distilbert": 66_985_530,
    "electra": 13_546_682,
    "mpnet": 109_516_991,
    "albert": 206_368_944,
    "nomic_bert": 137_354_304,
    "ernie4_5": 360_748_032,
    "ernie4_5_moe": 21_825_437_888,
    "exaone4": 9_429_069_824,
    "exaone_moe": 28_550_639_616,
    "falcon": 6_921_720_704,
    "falcon_h1": 8_514_961_408,
    "falcon_mamba": 159_308_544,
    "flex_olmo": 33_270_665_216,
    "flint": 39_785_287_456,
    "gemma": 8_537_680_896,
    "gemma2": 2_614_341_888,
    "gemma3": 2_723_312_896,
    "gemma3_text": 2_628_658_432,
    "gemma4": 5_077_177_856,
    "gemma4_text": 5_077_177_856,
    "glm": 9_399_951_360,
    "glm4": 9_400_279_040,
    "glm4_moe_lite": 29_943_390_976,
    "glm_moe_dsa": 743_911_199_232,
    "gpt-sw3": 124_439_808,
    "gpt2": 124_439_808,
    "gpt_bigcode": 111_446_784,
    "gpt_neo": 1_315_575_808,
    "gpt_neox": 20_554_567_680,
    "gpt_oss": 116_829_156_672,
    "gptj": 6_050_882_784,
    "granite": 6_738_415_616,
    "granite_swa": 2_144_463_840,
    "granitemoe": 37_039_116_288,
    "granitemoe_swa": 37_039_117_312,
    "granitemoehybrid": 38_601_064_448,
    "granitemoeshared": 37_039_116_288,
    "helium": 2_172_643_840,
    "hy_v3": 295_033_528_320,
    "hyperclovax": 6_738_677_760,
    "idefics3": 6_909_685_760,
    "internlm3": 8_804_241_408,
    "internvl": 11_765_025_792,
    "iquestcoder": 39_794_283_520,
    "jais2": 8_090_401_280,
    "jamba": 51_570_323_328,
    "kimi_k25": 670_570_869_232,
    "kimi_linear": 49_133_074_464,
    "kolibri1": 78_103_055_360,
    "laguna": 33_189_975_808,
    "llama": 6_738_415_616,
    "llama4": 108_225_039_360,
    "llama4_text": 107_769_861_120,
    "llava": 7_062_902_784,
    "llava_next": 7_062_906_880,
    "llava_onevision": 12_469_102_112,
    "longcat_flash": 560_664_958_976,
    "mamba": 159_308_544,
    "mamba2": 7_285_403_648,
    "mellum": 12_149_923_072,
    "mimo_v2_flash": 308_778_768_832,
    "minicpm3": 4_073_875_968,
    "minimax": 47_373_946_880,
    "minimax_m2": 228_689_748_992,
    "minimax_m3_vl_text": 447_186_441_216,
    "ministral3": 8_489_553_920,
    "mistral": 7_241_732_096,
    "mistral3": 23_340_272_640,
    "mixtral": 46_702_792_704,
    "mllama": 10_642_941_475,
    "mpt": 1_311_213_568,
    "nanochat": 256_573_440,
    "nemotron_h": 1_968_355_712,
    "olmo": 6_888_095_744,
    "olmo2": 6_888_624_128,
    "olmo3": 6_888_624_128,
    "olmo_hybrid": 7_430_870_688,
    "olmoe": 13_361_612_800,
    "openai-gpt": 116_534_784,
    "opt": 125_239_296,
    "paligemma": 2_910_390_528,
    "persimmon": 9_397_175_296,
    "phi": 1_418_270_720,
    "phi3": 3_821_079_552,
    "phimoe": 41_872_793_600,
    "qwen2": 12_049_846_272,
    "qwen2_5_vl": 75_789_228_800,
    "qwen2_moe": 14_315_784_192,
    "qwen2_vl": 73_381_962_752,
    "qwen3": 12_049_461_248,
    "qwen3_5": 9_407_453_936,
    "qwen3_5_moe": 35_114_261_360,
    "qwen3_5_moe_text": 34_660_610_688,
    "qwen3_5_text": 8_953_803_264,
    "qwen3_moe": 15_350_731_776,
    "qwen3_next": 79_674_391_296,
    "qwen3_vl": 12_616_410_352,
    "qwen3_vl_moe": 14_052_070_640,
    "recurrent_gemma": 2_010_263_040,
    "seed_oss": 28_921_040_896,
    "smollm3": 3_075_098_624,
    "smolvlm": 6_909_685_760,
    "solar_open": 102_651_793_408,
    "stablelm": 2_795_443_200,
    "starcoder2": 3_030_371_328,
    "step3p5": 195_843_833_088,
    "step3p7": 197_824_847_872,
    "vaultgemma": 2_614_222_080,
    "youtu": 1_961_560_064,
    "zamba2": 2_481_848_336,
}
# Of the models whose classes live in their own repositories: the figures of one config each.
BY_FIGURES: list[tuple[int, dict[str, Any]]] = [
    (7_818_517_072, dict(model("gemma-3n-e4b").config)),
    (184_551_780, dict(model("deberta-v3-base").config)),
    (302_863_104, dict(model("embeddinggemma").config)),
    (
        7_721_324_544,
        {"model_type": "qwen", "hidden_size": 4096, "vocab_size": 151936, "num_hidden_layers": 32},
    ),
    (
        6_243_584_000,
        {
            "model_type": "chatglm",
            "padded_vocab_size": 65024,
            "add_qkv_bias": True,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "ffn_hidden_size": 13696,
            "num_layers": 28,
        },
    ),
    (7_505_973_248, {"model_type": "baichuan", "max_position_embeddings": 4096}),
    (7_321_948_160, {"model_type": "internlm"}),
    (
        7_737_708_544,
        {
            "model_type": "internlm2",
            "vocab_size": 92544,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
        },
    ),
    (
        3_007_736_064,
        {
            "model_type": "minicpm",
            "hidden_size": 2304,
            "intermediate_size": 5760,
            "num_attention_heads": 36,
            "num_hidden_layers": 40,
            "vocab_size": 122760,
            "tie_word_embeddings": False,
        },
    ),
    (
        7_818_448_896,
        {"model_type": "exaone", "intermediate_size": 14336, "num_key_value_heads": 8, "num_layers": 32},
    ),
    (
        14_498_703_360,
        {"model_type": "orion", "hidden_size": 5120, "num_attention_heads": 40, "num_hidden_layers": 40},
    ),
    (7_299_846_144, {"model_type": "xverse", "vocab_size": 100534}),
    (7_622_619_136, {"model_type": "mimo", "num_hidden_layers": 36, "head_dim": 128}),
    (7_392_272_384, {"model_type": "phi3small"}),
    (315_684_820_992, {"model_type": "grok-1", "head_dim": 128}),
    (
        478_584_608_768,
        {
            "model_type": "arctic",
            "hidden_size": 7168,
            "intermediate_size": 4864,
            "num_attention_heads": 56,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 35,
            "num_key_value_heads": 8,
            "num_local_experts": 128,
            "moe_layer_frequency": 1,
            "parallel_attn_mlp_res": True,
            "use_residual": True,
        },
    ),
    (
        131_596_523_520,
        {
            "model_type": "dbrx",
            "d_model": 6144,
            "n_heads": 48,
            "n_layers": 40,
            "vocab_size": 100352,
            "attn_config": {"kv_n_heads": 8},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        },
    ),
    (106_852_245_504, {"model_type": "glm4_moe", "head_dim": 128, "attention_bias": True}),
    (
        8_540_135_424,
        {
            "model_type": "nemotron",
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "num_attention_heads": 32,
        },
    ),
    (4_073_875_968, {"architectures": ["MiniCPM3ForCausalLM"]}),
    (8_859_684_864, {"model_type": "hunyuan_v1_dense", "head_dim": 128}),
    (
        83_056_922_624,
        {
            "model_type": "hunyuan_v1_moe",
            "head_dim": 128,
            "num_experts": 64,
            "moe_topk": 8,
            "intermediate_size": 3072,
        },
    ),
    (7_241_732_096, {"model_type": "ministral", "head_dim": 128}),
    (
        161_206_276_032,
        {
            "model_type": "dots1",
            "n_routed_experts": 128,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
        },
    ),
    # the files of the repositories, before transformers had the types
    (
        6_888_095_744,
        {
            "model_type": "hf_olmo",
            "d_model": 4096,
            "n_heads": 32,
            "n_layers": 32,
            "mlp_hidden_size": 22016,
            "embedding_size": 50304,
            "weight_tying": False,
        },
    ),
    (
        1_176_764_416,
        {
            "model_type": "hf_olmo",
            "d_model": 2048,
            "n_heads": 16,
            "n_layers": 16,
            "mlp_hidden_size": 16384,
            "embedding_size": 50304,
        },
    ),
    (6_061_035_520, {"model_type": "Yi", "vocab_size": 64000, "num_key_value_heads": 4}),
    (7_295_537_152, {"model_type": "aquila", "vocab_size": 100008}),
    (
        6_921_720_704,
        {
            "model_type": "RefinedWebModel",
            "hidden_size": 4544,
            "n_head": 71,
            "n_layer": 32,
            "multi_query": True,
            "bias": False,
        },
    ),
    (
        41_303_293_952,
        {
            "model_type": "RefinedWeb",
            "hidden_size": 8192,
            "n_head": 128,
            "n_head_kv": 8,
            "n_layer": 60,
            "bias": False,
        },
    ),
    (
        2_779_683_840,
        {"model_type": "phi-msft", "n_embd": 2560, "n_head": 32, "n_layer": 32, "rotary_dim": 32},
    ),
    (
        1_418_270_720,
        {"model_type": "mixformer-sequential", "n_embd": 2048, "n_head": 32, "n_layer": 24, "rotary_dim": 32},
    ),
    (
        2_795_443_200,
        {"model_type": "stablelm_epoch", "hidden_size": 2560, "intermediate_size": 6912, "rope_pct": 0.25},
    ),
    (
        16_255_643_392,  # Ling-mini-2.0, published as 16.26 B
        {
            "model_type": "bailing_moe",
            "num_hidden_layers": 20,
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "moe_intermediate_size": 512,
            "num_experts_per_tok": 8,
            "num_attention_heads": 16,
            "num_experts": 256,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_shared_experts": 1,
            "vocab_size": 157184,
            "partial_rotary_factor": 0.5,
            "moe_router_enable_expert_bias": True,
            "use_qk_norm": True,
            "score_function": "sigmoid",
            "first_k_dense_replace": 1,
        },
    ),
    (
        16_801_974_272,  # Ling-lite, published as 16.8 B
        {
            "model_type": "bailing_moe",
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 1408,
            "num_experts": 64,
            "num_experts_per_tok": 6,
            "num_shared_experts": 2,
            "vocab_size": 126464,
            "head_dim": 128,
        },
    ),
    (
        4_204_990_464,
        {
            "model_type": "nemotron-nas",
            "num_hidden_layers": 32,
            "block_configs": [
                {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 4.0}},
                {"attention": {"no_op": True}, "ffn": {"ffn_mult": 2.0}},
            ]
            * 16,
        },
    ),
]


@pytest.mark.parametrize("model_type", sorted(BY_DEFAULT))
def test_parameters_of_the_class_defaults(model_type: str) -> None:
    assert architecture({"model_type": model_type}).num_parameters == BY_DEFAULT[model_type]


@pytest.mark.parametrize(("num_parameters", "config"), BY_FIGURES, ids=lambda value: str(value)[:40])
def test_parameters_of_models_with_code_of_their_own(num_parameters: int, config: dict[str, Any]) -> None:
    assert architecture(config).num_parameters == num_parameters


def test_every_type_is_counted_somewhere_here() -> None:
    counted = {*BY_DEFAULT, *(config.get("model_type") for _, config in BY_FIGURES)}
    same_as_another = {"blackmamba", "deepseek", "deepseek_v2", "kimi_k2", "minimax_m1", "minimax_m3"}
    same_as_another |= {"bailing_moe_v2", "minimax_text_01", "phi4"}
    same_as_another |= {
        "glm4v_text",
        "glm4v_moe_text",
        "kimi_vl",
        "minicpmv",
    }  # the last by what the Hub prints
    by_the_oracle = {config["model_type"] for config in CONFIGS.values()}
    assert set(supported_model_types()) <= counted | same_as_another | by_the_oracle


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [("openbmb/MiniCPM-V-2_6", 8_099_175_152), ("openbmb/MiniCPM-V-4_5", 8_695_895_280),
     ("openbmb/MiniCPM-Llama3-V-2_5", 8_537_092_336), ("HuggingFaceM4/idefics2-8b", 8_402_768_112)],
)  # fmt: skip
def test_towers_with_a_resampler_count_to_what_the_hub_prints(name: str, num_parameters: int) -> None:
    assert architecture(model(name).config).num_parameters == num_parameters


def test_deepseek_v2_lite_and_deepseek_moe() -> None:
    lite = {
        "model_type": "deepseek_v2",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "q_lora_rank": None,
        "first_k_dense_replace": 1,
        "num_experts_per_tok": 6,
    }
    assert architecture(lite).num_parameters == 15_706_484_224
    first = {
        **lite,
        "model_type": "deepseek",
        "num_hidden_layers": 28,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
    }
    assert architecture(first).num_parameters == 16_375_728_128
    assert architecture(first).layers_by_kind() == {"attention+mlp": 1, "attention+moe": 27}
