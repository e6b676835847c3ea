"""Load from an exposition."""

from replicas.engine_load import EngineLoad, Restoring, parse_load

VLLM = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:generation_tokens_total{engine="0",model_name="m"} 10.0
vllm:generation_tokens_created{engine="0"} 1.7e+09
"""
LLAMACPP = """llamacpp:requests_processing 0
llamacpp:requests_deferred 2
llamacpp:tokens_predicted_total 7
"""


def test_vllm_s_engines_are_summed() -> None:
    assert parse_load(VLLM, 9.0) == EngineLoad(5, 1, 10.0, 9.0)


def test_llamacpp() -> None:
    load = parse_load(LLAMACPP, 9.0)
    assert load == EngineLoad(0, 2, 7.0, 9.0)
    assert load is not None
    assert not load.is_idle


def test_no_metrics_is_no_load_rather_than_none_running() -> None:
    assert parse_load("", 9.0) is None
    assert parse_load("python_info 1\n", 9.0) is None


def test_the_fullest_kv_cache_counts() -> None:
    two = 'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.75\n'
    assert parse_load(VLLM + two, 9.0) == EngineLoad(5, 1, 10.0, 9.0, 0.75)
    assert parse_load(LLAMACPP + "llamacpp:kv_cache_usage_ratio 0\n", 9.0) == EngineLoad(0, 2, 7.0, 9.0, 0.0)


def test_what_graceway_s_own_connector_tells() -> None:
    told = """graceway_kv_restore_total{engine="0"} 3.0
graceway_kv_restore_created{engine="0"} 1.7e+09
graceway_kv_recompute_total{engine="0"} 1.0
graceway_kv_bandwidth_bytes_per_s{engine="0"} 1.5e+09
"""
    load = parse_load(VLLM + told, 9.0)
    assert load is not None
    assert load.restoring == Restoring(3, 1, 1.5e9, 0.0)
    assert parse_load(VLLM, 9.0) == EngineLoad(5, 1, 10.0, 9.0, restoring=None)
