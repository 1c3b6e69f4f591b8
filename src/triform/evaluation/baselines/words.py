"""What the baselines take for a word."""

from __future__ import annotations

import re

# Letters, digits and apostrophes between them (don't, l’homme), as the word tokenizer has it; marks are no words.
WORD_PATTERN = re.compile(r"\w+(?:['’]\w+)*")
