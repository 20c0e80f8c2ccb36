"""Models of well-known sizes with random weights: how long a step takes depends on shapes and types, not on values.

Written as Q4_K_M files: Q4_K, and Q6_K where quantising would cost most. The tokenizer and the chat template are those of
another file. Rows of the output are large for words of plain letters and 0 for everything else, so that completions are
plain words and none ends before `max_tokens`, on every server.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

F32, Q8_0, Q4_K, Q6_K = 0, 8, 12, 14
BLOCKS = {F32: (1, 4), Q8_0: (32, 34), Q4_K: (256, 144), Q6_K: (256, 210)}  # numbers and bytes of a block
NUMBER, FLOAT, TEXT, ARRAY = 4, 6, 8, 9
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
NORMAL_TOKEN, UNUSED_TOKEN = (struct.pack("<i", kind) for kind in (1, 5))
SPACE = "Ġ".encode()  # how byte-level vocabularies write it
PATTERN_BLOCKS = 4099  # random blocks that are repeated to fill a tensor
CONTEXT = 32_768


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    words: int
    tied: bool
    rope: float


SHAPES = {
    "0.5b": Shape(24, 896, 4864, 14, 2, 64, 151_936, True, 1e6),  # Qwen2.5 0.5B
    "1b": Shape(16, 2048, 8192, 32, 8, 64, 128_256, True, 5e5),  # Llama 3.2 1B
    "3b": Shape(28, 3072, 8192, 24, 8, 128, 128_256, True, 5e5),  # Llama 3.2 3B
    "8b": Shape(32, 4096, 14_336, 32, 8, 128, 128_256, False, 5e5),  # Llama 3.1 8B
}


@dataclass(frozen=True)
class Tensor:
    name: str
    sides: tuple[int, ...]
    kind: int

    def bytes(self) -> int:
        numbers, size = BLOCKS[self.kind]
        count = self.sides[0] // numbers * size
        return count * self.sides[1] if len(self.sides) > 1 else count


def write(name: str, tokenizer: Path, path: Path) -> None:
    """Writes the model of a size, with another file's tokenizer."""
    shape = SHAPES[name]
    pairs = {key: pair for key, pair in _metadata(tokenizer).items() if key.startswith("tokenizer.")}
    words, kinds = pairs["tokenizer.ggml.tokens"][1][1], pairs["tokenizer.ggml.token_type"][1][1]
    plain = [kind == NORMAL_TOKEN and _is_plain(word) for word, kind in zip(words, kinds, strict=True)]
    words += [b"<unused %d>" % at for at in range(len(words), shape.words)]
    kinds += [UNUSED_TOKEN] * (shape.words - len(kinds))
    pairs |= _settings(name, shape)
    tensors = _tensors(shape)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)))
        for key, (kind, value) in pairs.items():
            file.write(_packed(TEXT, key.encode()) + struct.pack("<I", kind) + _packed(kind, value))
        offset = 0
        for tensor in tensors:
            head = struct.pack(f"<I{len(tensor.sides)}QIQ", len(tensor.sides), *tensor.sides, tensor.kind, offset)
            file.write(_packed(TEXT, tensor.name.encode()) + head)
            offset += tensor.bytes() + -tensor.bytes() % 32
        file.write(bytes(-file.tell() % 32))
        for tensor in tensors:
            for piece in _weights(tensor, shape, plain):
                file.write(piece)
            file.write(bytes(-file.tell() % 32))
    part.rename(path)


def _is_plain(word: bytes) -> bool:
    letters = word.removeprefix(SPACE)
    return len(letters) > 1 and letters.isalpha() and letters.islower() and letters.isascii()


def _settings(name: str, shape: Shape) -> dict[str, tuple[int, object]]:
    numbers = {
        "block_count": shape.layers, "context_length": CONTEXT, "embedding_length": shape.width,
        "feed_forward_length": shape.inner, "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads, "attention.key_length": shape.head,
        "attention.value_length": shape.head, "rope.dimension_count": shape.head, "vocab_size": shape.words,
    }
    floats = {"rope.freq_base": shape.rope, "attention.layer_norm_rms_epsilon": 1e-5}
    return {
        "general.architecture": (TEXT, b"llama"), "general.name": (TEXT, f"random {name}".encode()),
        "general.file_type": (NUMBER, struct.pack("<I", 15)),
        **{f"llama.{key}": (NUMBER, struct.pack("<I", value)) for key, value in numbers.items()},
        **{f"llama.{key}": (FLOAT, struct.pack("<f", value)) for key, value in floats.items()},
    }


def _tensors(shape: Shape) -> list[Tensor]:
    fine, coarse = (Q6_K, Q4_K) if shape.width % 256 == 0 else (Q8_0, Q8_0)
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    tensors = [Tensor("token_embd.weight", (shape.width, shape.words), fine if shape.tied else coarse)]
    for layer in range(shape.layers):
        eighth = shape.layers // 8
        is_fine = layer < eighth or layer >= shape.layers - eighth or (layer - eighth) % 3 == 2
        sometimes = fine if is_fine else coarse
        parts = (
            ("attn_norm", (shape.width,), F32), ("attn_q", (shape.width, queries), coarse),
            ("attn_k", (shape.width, keys), coarse), ("attn_v", (shape.width, keys), sometimes),
            ("attn_output", (queries, shape.width), coarse), ("ffn_norm", (shape.width,), F32),
            ("ffn_gate", (shape.width, shape.inner), coarse), ("ffn_up", (shape.width, shape.inner), coarse),
            ("ffn_down", (shape.inner, shape.width), sometimes),
        )
        tensors += [Tensor(f"blk.{layer}.{part}.weight", sides, kind) for part, sides, kind in parts]
    tensors.append(Tensor("output_norm.weight", (shape.width,), F32))
    if not shape.tied:
        tensors.append(Tensor("output.weight", (shape.width, shape.words), fine))
    return tensors


def _weights(tensor: Tensor, shape: Shape, plain: list[bool]):
    """The bytes of a tensor, in pieces."""
    if tensor.kind == F32:
        yield struct.pack("<f", 1.0) * tensor.sides[0]
        return
    if tensor.name == ("token_embd.weight" if shape.tied else "output.weight"):
        numbers, size = BLOCKS[tensor.kind]
        blocks = tensor.sides[0] // numbers
        for word in range(shape.words):
            is_plain = word < len(plain) and plain[word]
            yield b"".join(_block(tensor.kind, 0.1) for _ in range(blocks)) if is_plain else bytes(blocks * size)
        return
    pattern = b"".join(_block(tensor.kind, tensor.sides[0] ** -0.5) for _ in range(PATTERN_BLOCKS))
    whole, rest = divmod(tensor.bytes(), len(pattern))
    for _ in range(whole):
        yield pattern
    yield pattern[:rest]


def _block(kind: int, deviation: float) -> bytes:
    """Random weights of about that standard deviation. The factors follow from the definitions of the types."""
    if kind == Q8_0:
        return struct.pack("<e", deviation / 74) + os.urandom(32)
    if kind == Q6_K:
        return os.urandom(192) + bytes([8]) * 16 + struct.pack("<e", deviation / 148)
    factor = deviation / 147
    # Eight factors and minimums of 6 bits, all of them 32.
    return struct.pack("<ee", factor, 7.5 * factor) + bytes([0xA0] * 8 + [0] * 4) + os.urandom(128)


def _metadata(path: Path) -> dict[str, tuple[int, object]]:
    """The types and values of a file's settings; an array is the type and the values of its elements."""
    with path.open("rb") as file:

        def text() -> bytes:
            return file.read(struct.unpack("<Q", file.read(8))[0])

        def value(kind: int) -> object:
            if kind == TEXT:
                return text()
            if kind == ARRAY:
                inner, length = struct.unpack("<IQ", file.read(12))
                return inner, [value(inner) for _ in range(length)]
            return file.read(SCALAR_BYTES[kind])

        _magic, _version, _tensors, count = struct.unpack("<4sIQQ", file.read(24))
        found = {}
        for _ in range(count):
            key, kind = text().decode(), struct.unpack("<I", file.read(4))[0]
            found[key] = (kind, value(kind))
        return found


def _packed(kind: int, value: object) -> bytes:
    if kind == TEXT:
        return struct.pack("<Q", len(value)) + value
    if kind == ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(_packed(inner, item) for item in items)
    return value
