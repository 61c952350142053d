"""Its model of a local server."""

import os

from asked import MODEL, QUESTION, place

os.environ["DEEPEVAL_TELEMETRY_OPT_OUT"] = "YES"
from deepeval.models import LocalModel  # noqa: E402

url, _, where = place()
said, _ = LocalModel(model=MODEL, base_url=url + "/v1", api_key="none", temperature=0).generate(QUESTION)
assert said
