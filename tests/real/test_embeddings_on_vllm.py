"""Embeddings of a real vLLM through the gateway, as OpenAI's own client asks for them."""

from pathlib import Path

import openai
import pytest

from replicas.engines import EngineSpec
from tests.integration.rig import PATIENT, serving
from tests.real.test_resume_on_vllm import MODEL, Vllm

TEXTS = ["The sea is wide.", "Water covers the sea.", "Taxes are due in May."]


class PoolingVllm(Vllm):
    """One that gives embeddings, and writes nothing."""

    def __init__(self, log_path: Path) -> None:
        super().__init__(log_path)
        more = ("--dtype", "float32", "--runner", "pooling", "--convert", "embed")
        self._spec = EngineSpec("vllm", str(MODEL), "smollm2", slots=4, max_model_len=512, extra_args=more)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_what_the_client_gets_is_what_vllm_gives(tmp_path: Path) -> None:
    engine = PoolingVllm(tmp_path / "vllm.log")
    tier = {"name": "primary", "backend": "openai", "served_model": "smollm2", "slots": 4, "slo": PATIENT}
    tier |= {"replicas": [{"url": engine.url}], "probe": None}
    try:
        await engine.start()
        async with (
            serving(tmp_path / "gateway.yaml", tier) as gateway,
            openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
            openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none") as direct,
        ):
            through = await client.embeddings.create(model="chat", input=TEXTS)
            own = await direct.embeddings.create(model="smollm2", input=TEXTS)
            assert [d.index for d in through.data] == [0, 1, 2]
            for told, expected in zip(through.data, own.data, strict=True):
                assert told.embedding == pytest.approx(expected.embedding, abs=1e-4)
            assert through.usage == own.usage
            with pytest.raises(openai.APIStatusError) as refused:
                await client.embeddings.create(model="chat", input="word " * 2000)
            assert refused.value.status_code == 400
            (replica,) = (await gateway.replicas()).values()
            assert (replica["state"], replica["breaker"]) == ("ready", "closed")
    finally:
        await engine.stop()
