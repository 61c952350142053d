"""Random JSON schemas whose values are short, for the tests of constrained decoding: a schema is a function of its seed."""

import random

NAMES = ["a", "b", "name", "n\u00e9", "a b", 'q"q', "items", "\u20ac", "ab", "abc"]
PATTERNS = ["^[a-c]{1,4}$", "^\\d{2}-\\d{2}$", "^(x|yy)*z$", "^[^a-z\"]{2}$", "^\\w\\s?\\w$", "^a\\\\\"b$", "^[\\u00e0-\\u00ff]{1,3}$"]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email"]


class Generator:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.defs = {}

    def whole(self):
        schema = self.schema(3)
        return {**schema, "$defs": self.defs} if self.defs else schema

    def schema(self, depth):
        simple = [self.string, self.string, self.integer, self.number, self.enum, self.const, self.bool, self.null, self.types]
        nested = [self.object, self.object, self.array, self.tuple, self.map, self.any_of, self.one_of, self.all_of, self.list]
        return self.r.choice(nested * 2 + simple if depth > 0 else simple)(depth)

    def string(self, _):
        kind = self.r.random()
        if kind < 0.2:
            return {"type": "string", "pattern": self.r.choice(PATTERNS)}
        if kind < 0.35:
            return {"type": "string", "format": self.r.choice(FORMATS)}
        low = self.r.choice([0, 0, 1, 5])
        return {"type": "string", "minLength": low, "maxLength": low + self.r.choice([0, 3, 20])}

    def bounds(self, low, high):
        which = self.r.random()
        if which < 0.2:
            return {}
        out = {self.r.choice(["minimum", "exclusiveMinimum"]): low}
        if which > 0.4:
            out[self.r.choice(["maximum", "exclusiveMaximum"])] = high
        return out

    def integer(self, _):
        low = self.r.choice([-1000, -37, -1, 0, 1, 9, 10, 12345])
        return {"type": "integer", **self.bounds(low, low + self.r.choice([3, 10, 99, 123456]))}

    def number(self, _):
        low = self.r.choice([-100.5, -1, -0.25, 0, 0.001, 1, 9.99, 250])
        return {"type": "number", **self.bounds(low, round(low + self.r.choice([0.02, 0.5, 1, 7.75, 1000]), 3))}

    def value(self):
        return self.r.choice([None, True, 0, -5, 2.5, "x", 'q"\\', "\u00e9\n", [1, "a"], {"k": [None], "l": 2}, ""])

    def enum(self, _):
        return {"enum": [self.value() for _ in range(self.r.randint(1, 4))]}

    def const(self, _):
        return {"const": self.value()}

    def bool(self, _):
        return {"type": "boolean"}

    def null(self, _):
        return {"type": "null"}

    def types(self, _):
        return {"type": self.r.sample(["string", "integer", "null", "boolean"], 2), "maxLength": 4, "title": "of types"}

    def object(self, depth):
        names = self.r.sample(NAMES, self.r.randint(0, 4))
        out = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names},
               "required": [name for name in names if self.r.random() < 0.6]}  # fmt: skip
        more = self.r.random()
        if more < 0.5:
            out["additionalProperties"] = False
        elif more < 0.6:  # keys may be long: their model is random
            out["additionalProperties"] = self.schema(0)
        return out

    def map(self, depth):
        return {"type": "object", "additionalProperties": self.schema(depth - 1), "maxProperties": self.r.randint(0, 3),
                "propertyNames": {"maxLength": 6}}  # fmt: skip

    def array(self, depth):
        low = self.r.choice([0, 0, 1, 2])
        return {"type": "array", "items": self.schema(depth - 1), "minItems": low, "maxItems": low + self.r.randint(0, 3)}

    def tuple(self, depth):
        return {"type": "array", "prefixItems": [self.schema(depth - 1) for _ in range(self.r.randint(1, 3))], "items": False}

    def any_of(self, depth):
        return {"anyOf": [self.schema(depth - 1) for _ in range(self.r.randint(1, 3))], "description": "any"}

    def one_of(self, depth):
        kinds = self.r.sample(["cat", "dog", "bird"], self.r.randint(2, 3))
        return {"oneOf": [{"type": "object", "properties": {"kind": {"const": k}, "v": self.schema(depth - 1)},
                           "required": ["kind", "v"]} for k in kinds]}  # fmt: skip

    def all_of(self, depth):
        first = self.schema(depth - 1)
        return {"type": "object", "allOf": [{"properties": {"x": first}, "required": ["x"]}, {"properties": {"y": {"type": "null"}}}]}

    def list(self, depth):
        """Recursion: a list that ends by null."""
        name = f"list{len(self.defs)}"
        self.defs[name] = {}
        self.defs[name] = {"type": "object", "properties": {"v": self.schema(0), "next": {"anyOf": [
            {"type": "null"}, {"$ref": f"#/$defs/{name}"}]}}, "required": ["v", "next"]}  # fmt: skip
        return {"$ref": f"#/$defs/{name}"}


def schema(seed):
    return Generator(seed).whole()
