"""models.OpenAI: gen, and json by a schema."""

import guidance
import pydantic
from asked import MODEL, QUESTION, place

url, _, where = place()


class Sum(pydantic.BaseModel):
    a: int
    exact: bool


model = guidance.models.OpenAI(MODEL, base_url=url + "/v1", api_key="none", echo=False)
with guidance.user():
    model += QUESTION
with guidance.assistant():
    free = model + guidance.gen("said", max_tokens=20)
    typed = model + guidance.json("said", schema=Sum)
assert free["said"]
Sum.model_validate_json(typed["said"])
