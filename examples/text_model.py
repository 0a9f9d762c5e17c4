"""A small model of text that infers its depth: characters in, the next character out.

python examples/text_model.py FILE
"""

import sys
from pathlib import Path

import torch

import unbounded as ub
from unbounded.data import Text, windows

SAMPLE = "the cat sat on the mat, the dog sat on the log. " * 80


def run(text: str = SAMPLE, epochs: int = 15, length: int = 32) -> tuple[ub.UDN, Text]:
    data = Text.of(text)
    size = len(data.alphabet)
    held = len(data.tokens) // 10  # the last tenth tells what layers are worth
    layers = ub.TransformerLayers(size, 32, heads=2)
    model = ub.UDN(
        layers, ub.Tokens(size, score="bits_per_character"), ub.TruncatedNormal(2.0, 1.0)
    )
    result = ub.fit(
        model,
        *windows(data.tokens[:-held], length),
        validation=windows(data.tokens[-held:], length),
        epochs=epochs,
        batch_size=16,
        lr=0.003,
        clip=1.0,
        depth_rule=ub.HeldOutAscent(),
    )
    print(f"{result.best_score:.3f} bits a character, held out")
    return model, data


if __name__ == "__main__":
    given = Path(sys.argv[1]).read_text(encoding="utf-8") if len(sys.argv) > 1 else SAMPLE
    model, data = run(given)
    print(f"E[depth] = {model.depth.mean():.2f}, at most {model.depth.max_depth()}")
    prompt = data.encode(given[:8])[None]
    generator = torch.Generator().manual_seed(0)
    written = ub.generate(model, prompt, 100, temperature=0.8, sure=0.9, generator=generator)
    print(data.decode(written.tokens[0]))
    print(f"{written.depths.float().mean():.1f} layers a character on average")
