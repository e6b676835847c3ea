"""Asks the engine servers: for answers, and the best tier's for how likely it finds them.

Likelihoods come from vLLM's `prompt_logprobs` on a chat that ends in the answer; servers that don't have it give none.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp

from fallback_models.quality.judge import Answers, Likelihood, is_right
from fallback_models.quality.prompts import PromptSet

Json = dict[str, Any]
OPEN_TOKENS, EXACT_TOKENS = 64, 16
AT_ONCE = 4


class InterviewFailed(Exception):  # noqa: N818 - a condition, said to the operator as it is
    """A server can't be asked at all."""


@dataclass(frozen=True, slots=True)
class Server:
    """One replica's OpenAI-compatible server, and the model that it knows."""

    url: str
    served_model: str
    api_key: str | None = None


@dataclass(slots=True)
class Interview:
    """Questions to servers over one session, a few at a time. `timeout_s` is for each."""

    http: aiohttp.ClientSession
    timeout_s: float = 300.0

    async def served_model(self, url: str, api_key: str | None) -> str:
        """The first model that a server names.

        Raises:
            InterviewFailed
        """
        try:
            told = await self._send("GET", Server(url, "", api_key), "/v1/models")
            return str(told["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError, KeyError, IndexError, TypeError) as error:
            raise InterviewFailed(f"{url} names no model ({error or type(error).__name__})") from error

    async def answer(self, server: Server, prompt: str, tokens: int) -> str | None:
        """A greedy answer; None when none comes."""
        try:
            told = await self._chat(server, [_user(prompt)], max_tokens=tokens)
            return str(told["choices"][0]["message"]["content"] or "")
        except (aiohttp.ClientError, TimeoutError, KeyError, IndexError, TypeError):
            return None

    async def likelihood(self, judge: Server, prompt: str, answer: str) -> Likelihood | None:
        """How likely the judge finds an answer; None where it doesn't say."""
        try:
            asked = await self._chat(judge, [_user(prompt)], max_tokens=1)
            told = await self._chat(
                judge,
                [_user(prompt), {"role": "assistant", "content": answer}],
                max_tokens=1,
                prompt_logprobs=0,
                add_generation_prompt=False,
                continue_final_message=True,
            )
            logprobs = told.get("prompt_logprobs") or []
            of_answer = logprobs[int(asked["usage"]["prompt_tokens"]) :]
            values = [next(iter(position.values()))["logprob"] for position in of_answer if position]
        except (aiohttp.ClientError, TimeoutError, KeyError, TypeError, AttributeError, StopIteration):
            return None
        return Likelihood(float(sum(values)), len(values)) if values else None

    async def _chat(self, server: Server, messages: list[Json], **more: Any) -> Json:
        body = {"model": server.served_model, "messages": messages, "temperature": 0, **more}
        return await self._send("POST", server, "/v1/chat/completions", body)

    async def _send(self, method: str, server: Server, path: str, body: Json | None = None) -> Json:
        headers = {} if server.api_key is None else {"authorization": f"Bearer {server.api_key}"}
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        async with self.http.request(
            method, server.url.rstrip("/") + path, json=body, headers=headers, timeout=timeout
        ) as response:
            response.raise_for_status()
            told: Json = await response.json()
            return told


def _user(prompt: str) -> Json:
    return {"role": "user", "content": prompt}


async def interviewed(interview: Interview, server: Server, judge: Server, prompts: PromptSet) -> Answers:
    """One tier's answers to the whole set, as the judge finds them.

    Raises:
        InterviewFailed: it answers nothing.
    """
    places = asyncio.Semaphore(AT_ONCE)

    async def ask(prompt: str, tokens: int) -> str | None:
        async with places:
            return await interview.answer(server, prompt, tokens)

    async def judged(prompt: str, answer: str) -> Likelihood | None:
        async with places:
            return await interview.likelihood(judge, prompt, answer)

    exact = await asyncio.gather(*(ask(item.prompt, EXACT_TOKENS) for item in prompts.exact))
    opened = await asyncio.gather(*(ask(prompt, OPEN_TOKENS) for prompt in prompts.open))
    if not any(answer is not None for answer in (*exact, *opened)):
        raise InterviewFailed(f"{server.url} answers nothing")
    pairs = [(p, a) for p, a in zip(prompts.open, opened, strict=True) if a]
    likelihoods = await asyncio.gather(*(judged(prompt, answer) for prompt, answer in pairs))
    return Answers(
        likelihoods=[one for one in likelihoods if one is not None],
        right=[is_right(a or "", item.answers) for item, a in zip(prompts.exact, exact, strict=True)],
        opened=len(prompts.open),
        silent=len(prompts.open) - len(pairs),
    )
