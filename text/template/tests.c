/* Tests: the names after `is`, also used by select() and similar filters. Called by the evaluator on the run's thread.
 */
#include "text/template/builtin.h"
#include "text/template/eval.h"
#include "text/template/value/iter.h"

#define TEST(name)                                                                                                     \
    static struct clime_tv name(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args)

static struct clime_tv one_arg(struct clime_tr *tr, const struct clime_targs *args, const char *name) {
    struct clime_tv v;
    clime_targs_bind(tr, "test", args, name, 1, &v);
    return v;
}

/* A test without arguments that is one condition on self. */
#define TEST_IF(name, condition)                                                                                       \
    TEST(name) {                                                                                                       \
        clime_targs_bind(tr, "test", args, "", 0, NULL);                                                               \
        return clime_tv_bool(condition);                                                                               \
    }

TEST_IF(t_defined, self.kind != CLIME_T_UNDEFINED)
TEST_IF(t_undefined, self.kind == CLIME_T_UNDEFINED)
TEST_IF(t_none, self.kind == CLIME_T_NONE)
TEST_IF(t_boolean, self.kind == CLIME_T_BOOL)
TEST_IF(t_true, self.kind == CLIME_T_BOOL && self.b)
TEST_IF(t_false, self.kind == CLIME_T_BOOL && !self.b)
TEST_IF(t_float, self.kind == CLIME_T_FLOAT)
TEST_IF(t_string, self.kind == CLIME_T_STR)
TEST_IF(t_mapping, self.kind == CLIME_T_DICT)
TEST_IF(t_escaped, clime_tv_is_markup(self))
TEST_IF(t_iterable, clime_titer_able(self) || self.kind == CLIME_T_LOOP)
TEST_IF(t_integer, self.kind == CLIME_T_INT || self.kind == CLIME_T_BIGINT)
TEST_IF(t_number, clime_tv_is_int(self) || self.kind == CLIME_T_BIGINT || self.kind == CLIME_T_FLOAT)

TEST(t_sequence) {
    clime_targs_bind(tr, "test", args, "", 0, NULL);
    switch (self.kind) {
    case CLIME_T_UNDEFINED:
    case CLIME_T_STR:
    case CLIME_T_LIST:
    case CLIME_T_TUPLE:
    case CLIME_T_DICT:
    case CLIME_T_RANGE:
        return clime_tv_bool(true);
    default:
        return clime_tv_bool(false);
    }
}

TEST(t_callable) {
    clime_targs_bind(tr, "test", args, "", 0, NULL);
    switch (self.kind) {
    case CLIME_T_UNDEFINED: /* Python's callable() asks the type, and Undefined has __call__ */
    case CLIME_T_LOOP:
    case CLIME_T_MACRO:
    case CLIME_T_FUNC:
    case CLIME_T_METHOD:
    case CLIME_T_JOINER:
        return clime_tv_bool(true);
    default:
        return clime_tv_bool(false);
    }
}

static bool remainder_is(struct clime_tr *tr, struct clime_tv v, struct clime_tv by, int64_t want) {
    return clime_tv_equal(tr, clime_tbinary(tr, '%', v, by), clime_tv_int(want));
}

TEST_IF(t_odd, remainder_is(tr, self, clime_tv_int(2), 1))
TEST_IF(t_even, remainder_is(tr, self, clime_tv_int(2), 0))
TEST(t_divisibleby) {
    return clime_tv_bool(remainder_is(tr, self, one_arg(tr, args, "num"), 0));
}

/* str.islower() and isupper() of str(value), by the methods of the same name. */
static struct clime_tv ask_method(struct clime_tr *tr, struct clime_tv v, const struct clime_targs *args,
                                  const char *name) {
    struct clime_tv s = clime_tv_str(tr, clime_tv_to_str(tr, v));
    return clime_tmethod_find(s, clime_str_of(name))->fn(tr, s, args);
}

TEST(t_lower) {
    return ask_method(tr, self, args, "islower");
}
TEST(t_upper) {
    return ask_method(tr, self, args, "isupper");
}

TEST_IF(t_filter, self.kind == CLIME_T_STR && clime_tfilter_find(clime_tv_text(self)))
TEST_IF(t_test, self.kind == CLIME_T_STR && clime_ttest_find(clime_tv_text(self)))

TEST(t_sameas) {
    return clime_tv_bool(clime_tv_same(self, one_arg(tr, args, "other")));
}
TEST(t_in) {
    return clime_tv_bool(clime_tcompare(tr, CLIME_CMP_IN, self, one_arg(tr, args, "seq")));
}
TEST(t_eq) {
    return clime_tv_bool(clime_tcompare(tr, CLIME_CMP_EQ, self, one_arg(tr, args, "other")));
}
TEST(t_ne) {
    return clime_tv_bool(clime_tcompare(tr, CLIME_CMP_NE, self, one_arg(tr, args, "other")));
}
TEST(t_lt) {
    return clime_tv_bool(clime_tcompare(tr, CLIME_CMP_LT, self, one_arg(tr, args, "other")));
}
TEST(t_le) {
    return clime_tv_bool(clime_tcompare(tr, CLIME_CMP_LE, self, one_arg(tr, args, "other")));
}
TEST(t_gt) {
    return clime_tv_bool(clime_tcompare(tr, CLIME_CMP_GT, self, one_arg(tr, args, "other")));
}
TEST(t_ge) {
    return clime_tv_bool(clime_tcompare(tr, CLIME_CMP_GE, self, one_arg(tr, args, "other")));
}

static const struct clime_tbuiltin TESTS[] = {
    {"defined", t_defined},
    {"undefined", t_undefined},
    {"none", t_none},
    {"boolean", t_boolean},
    {"true", t_true},
    {"false", t_false},
    {"integer", t_integer},
    {"float", t_float},
    {"number", t_number},
    {"string", t_string},
    {"mapping", t_mapping},
    {"sequence", t_sequence},
    {"iterable", t_iterable},
    {"callable", t_callable},
    {"escaped", t_escaped},
    {"odd", t_odd},
    {"even", t_even},
    {"divisibleby", t_divisibleby},
    {"lower", t_lower},
    {"upper", t_upper},
    {"filter", t_filter},
    {"test", t_test},
    {"sameas", t_sameas},
    {"in", t_in},
    {"eq", t_eq},
    {"equalto", t_eq},
    {"==", t_eq},
    {"ne", t_ne},
    {"!=", t_ne},
    {"lt", t_lt},
    {"lessthan", t_lt},
    {"<", t_lt},
    {"le", t_le},
    {"<=", t_le},
    {"gt", t_gt},
    {"greaterthan", t_gt},
    {">", t_gt},
    {"ge", t_ge},
    {">=", t_ge},
    {NULL, NULL},
};

const struct clime_tbuiltin *clime_ttest_find(struct clime_str name) {
    return clime_tbuiltin_in(TESTS, name);
}
