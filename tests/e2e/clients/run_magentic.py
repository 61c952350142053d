"""A prompt with a function, and a typed one."""

import magentic
import pydantic
from asked import ANSWER, MODEL, QUESTION, place

url, _, where = place()
ran = []


class Sum(pydantic.BaseModel):
    a: int
    exact: bool


def add(a: int, b: int) -> int:
    """Adds."""
    ran.append((a, b))
    return a + b


model = magentic.OpenaiChatModel(MODEL, base_url=url + "/v1", api_key="none", temperature=0, max_tokens=200)


@magentic.prompt_chain(QUESTION, functions=[add], model=model)
def chain() -> str: ...


said = chain()
assert said == ANSWER and ran == [(17, 25)], (said, ran)


@magentic.prompt(QUESTION, model=model)
def typed() -> Sum: ...


assert isinstance(typed(), Sum)
