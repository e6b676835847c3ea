"""vLLM's JSON: stream events and whole answers, for chat and for text completions."""

from dataclasses import dataclass

import orjson

from loadtests.asked import Asked

Json = dict[str, object]
FINGERPRINT = "vllm-0.32.0-sim"
DONE = b"data: [DONE]\n\n"


def event(payload: Json) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all chunks and the whole answer of one request have in common."""

    asked: Asked
    request_id: str
    created: int

    def chunk(self, choices: list[Json]) -> Json:
        return {
            "id": self.request_id,
            "object": "chat.completion.chunk" if self.asked.is_chat else "text_completion",
            "created": self.created,
            "model": self.asked.model,
            "choices": choices,
        }

    def role_chunk(self, index: int) -> Json:
        choice: Json = {
            "index": index,
            "delta": {"role": self.asked.role, "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        ids = self.asked.prompts[0] if self.asked.wants_ids else None
        usage = {"usage": self.usage(0)} if self.asked.wants_running_usage else {}
        return self.chunk([choice]) | usage | {"prompt_token_ids": ids, "prompt_text": None}

    def token_chunk(self, piece: "Piece") -> Json:
        choice = self._chat_choice(piece) if self.asked.is_chat else self._text_choice(piece)
        chunk = self.chunk([choice])
        if piece.finish is not None and not self.asked.wants_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        if self.asked.wants_running_usage:
            chunk["usage"] = self.usage(piece.generated)
        return chunk

    def _chat_choice(self, piece: "Piece") -> Json:
        choice: Json = {
            "index": piece.index,
            "delta": {"content": piece.text},
            "logprobs": chat_logprobs([piece.text]) if self.asked.wants_logprobs else None,
            "finish_reason": piece.finish,
        }
        if piece.finish is not None:
            choice["stop_reason"] = piece.stop_reason
        return choice | {"token_ids": piece.ids if self.asked.wants_ids else None}

    def _text_choice(self, piece: "Piece") -> Json:
        is_first = piece.generated <= 1 and self.asked.wants_ids
        return {
            "index": piece.index,
            "text": piece.text,
            "logprobs": text_logprobs([piece.text]) if self.asked.wants_logprobs else None,
            "finish_reason": piece.finish,
            "stop_reason": piece.stop_reason,
            "prompt_token_ids": self.asked.prompts[piece.index // self.asked.choices] if is_first else None,
            "token_ids": piece.ids if self.asked.wants_ids else None,
        }

    def usage_chunk(self, generated: int) -> Json:
        return self.chunk([]) | {"usage": self.usage(generated), "system_fingerprint": FINGERPRINT}

    def usage(self, generated: int) -> Json:
        prompt_tokens = sum(map(len, self.asked.prompts))
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + generated,
            "completion_tokens": generated,
        }

    def whole(self, pieces: list["Piece"]) -> Json:
        """The answer that is not streamed."""
        choices = [self._whole_choice(piece) for piece in pieces]
        body = self.chunk(choices) | {
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self.usage(sum(piece.generated for piece in pieces)),
        }
        if self.asked.is_chat:
            body["object"] = "chat.completion"
            body["prompt_logprobs"] = None
            body["prompt_token_ids"] = self.asked.prompts[0] if self.asked.wants_ids else None
        return body | {"kv_transfer_params": None}

    def _whole_choice(self, piece: "Piece") -> Json:
        ending: Json = {"finish_reason": piece.finish, "stop_reason": piece.stop_reason}
        ids = piece.ids if self.asked.wants_ids else None
        if self.asked.is_chat:
            message: Json = {
                "role": self.asked.role,
                "content": piece.text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            }
            logprobs = chat_logprobs(piece.texts) if self.asked.wants_logprobs else None
            head: Json = {"index": piece.index, "message": message, "logprobs": logprobs}
            return head | ending | {"token_ids": ids}
        logprobs = text_logprobs(piece.texts) if self.asked.wants_logprobs else None
        prompt = self.asked.prompts[piece.index // self.asked.choices] if self.asked.wants_ids else None
        first: Json = {"index": piece.index, "text": piece.text, "logprobs": logprobs}
        return first | ending | {"token_ids": ids, "prompt_logprobs": None, "prompt_token_ids": prompt}


@dataclass(slots=True)
class Piece:
    """A part of one choice: the tokens since the last piece, or all of them."""

    index: int
    texts: list[str]
    ids: list[int]
    generated: int = 0
    finish: str | None = None
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


def chat_logprobs(texts: list[str]) -> Json:
    """Every token as likely as the next: the shape is vLLM's, the numbers say nothing."""
    return {
        "content": [
            {"token": text, "logprob": -0.1, "bytes": list(text.encode()), "top_logprobs": []}
            for text in texts
        ]
    }


def text_logprobs(texts: list[str]) -> Json:
    offsets = [sum(map(len, texts[:number])) for number in range(len(texts))]
    return {
        "text_offset": offsets,
        "token_logprobs": [-0.1] * len(texts),
        "tokens": texts,
        "top_logprobs": [{text: -0.1} for text in texts],
    }
