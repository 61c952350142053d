"""Its LM over chat, text and Responses."""

import dspy
from asked import MODEL, QUESTION, place

url, _, where = place()
for kind in ("chat", "text", "responses"):
    lm = dspy.LM(f"openai/{MODEL}", api_base=url + "/v1", api_key="none", model_type=kind, temperature=0.0, max_tokens=100, cache=False)
    (said,) = lm(QUESTION)
    assert said, (kind, said)
lm = dspy.LM(f"openai/{MODEL}", api_base=url + "/v1", api_key="none", temperature=1.0, max_tokens=20, cache=False)
assert len(lm(QUESTION, n=2)) == 2
