"""Settings of text generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triform.config.bounds import validate_bounds
from triform.config.documentation import setting
from triform.config.validation import Section, require

DecodingStrategy = Literal["auto", "greedy", "sample", "beam"]
MixComponent = Literal["ngram", "cache"]


@dataclass(frozen=True, kw_only=True)
class DecodeConfig(Section):
    """How tokens are chosen when the model generates text. You can change these settings for each prediction."""

    strategy: DecodingStrategy = setting(
        "auto",
        "How the next token is chosen: the most likely one, a random sample, or beam search.",
        auto="`sample` for generate, `beam` for translate.",
        details="An option of predict that only one strategy uses, such as --beam-size, selects this strategy.",
    )
    temperature: float = setting(
        0.8,
        "Divides the logits before sampling; lower values give likelier text.",
        applies_to="decode.strategy=sample",
    )
    top_k: int = setting(
        0,
        "Samples from the k most likely tokens only.",
        applies_to="decode.strategy=sample",
        details="0 means all.",
    )
    top_p: float = setting(
        1.0,
        "Samples from the fewest tokens whose probabilities add up to p.",
        applies_to="decode.strategy=sample",
        details="1 means all.",
    )
    beam_size: int = setting(
        4, "The number of hypotheses that beam search keeps.", applies_to="decode.strategy=beam"
    )
    length_penalty: float = setting(
        0.6,
        "How strongly beam search prefers long hypotheses.",
        applies_to="decode.strategy=beam",
        details="Log probabilities are divided by ((5 + length) / 6) to this power; 0 means no correction.",
    )
    mix: tuple[MixComponent, ...] = setting(
        (),
        "The models of counts whose probabilities are mixed with those of the model.",
        applies_to="generate with decode.strategy=greedy or decode.strategy=sample",
        details="`ngram` is an n-gram model of the training data, and `cache` a unigram model of the 500 tokens "
        "before. The weights are learned on the validation data when the run is opened to predict or evaluate. "
        "Training, and the validation during training, use the model alone. The option --mix sets it.",
    )
    max_new_tokens: int = setting(  # the last one; see `LAST_CONFIG_KEY`
        0,
        "The largest number of tokens that the model writes.",
        auto="200 for generate; for translate 16 more than twice the length of the source.",
    )

    def __post_init__(self, given: frozenset[str] | None) -> None:
        require(
            self.temperature > 0,
            f"decode.temperature={self.temperature} must be above 0; "
            "to choose the most likely token, set decode.strategy=greedy",
        )
        require(0 < self.top_p <= 1, f"decode.top_p={self.top_p} must be above 0 and at most 1")
        require(len(set(self.mix)) == len(self.mix), f"decode.mix={','.join(self.mix)} names a component twice")
        require(
            not (self.mix and self.strategy == "beam"),
            "decode.mix works with greedy decoding and sampling; leave out decode.strategy=beam and "
            "decode.beam_size",
        )
        validate_bounds(self, "decode")
