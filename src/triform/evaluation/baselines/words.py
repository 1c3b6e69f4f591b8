"""The words that baselines count."""

from __future__ import annotations

import re

# Letters and digits with apostrophes between them (don't, l’homme), like the word tokenizer; no punctuation.
WORD_PATTERN = re.compile(r"\w+(?:['’]\w+)*")
