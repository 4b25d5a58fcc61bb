// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"math"
	"math/big"
)

func fillTests() {
	one := func(f func(r *render, a, b any) bool) testFunc {
		return func(r *render, v any, pos []any) bool {
			if len(pos) != 1 {
				fail("the test wants one argument")
			}
			return f(r, v, pos[0])
		}
	}
	cmp := func(op string) testFunc {
		return one(func(r *render, a, b any) bool { return r.compare(op, a, b) })
	}
	whole := func(v any) (int64, bool) {
		if u, ok := v.(*undefined); ok {
			u.fail()
		}
		f, i, isInt, ok := number(v)
		if !ok {
			fail("a number is wanted, not %s", typeName(v))
		}
		if !isInt {
			return int64(f), f == math.Trunc(f)
		}
		return i, true
	}
	tests = map[string]testFunc{
		"defined":   func(_ *render, v any, _ []any) bool { _, u := v.(*undefined); return !u },
		"undefined": func(_ *render, v any, _ []any) bool { _, u := v.(*undefined); return u },
		"none":      func(_ *render, v any, _ []any) bool { return v == nil },
		"boolean":   func(_ *render, v any, _ []any) bool { _, ok := v.(bool); return ok },
		"true":      func(_ *render, v any, _ []any) bool { return v == true },
		"false":     func(_ *render, v any, _ []any) bool { return v == false },
		"integer": func(_ *render, v any, _ []any) bool {
			switch v.(type) {
			case int64, *big.Int:
				return true
			}
			return false
		},
		"float":  func(_ *render, v any, _ []any) bool { _, ok := v.(float64); return ok },
		"number": func(_ *render, v any, _ []any) bool { _, _, _, ok := number(v); return ok },
		"string": func(_ *render, v any, _ []any) bool { _, ok := v.(string); return ok },
		"mapping": func(_ *render, v any, _ []any) bool {
			_, ok := v.(*dict)
			return ok
		},
		"iterable": func(_ *render, v any, _ []any) bool {
			switch v.(type) {
			case string, *list, *dict, *undefined:
				return true
			}
			return false
		},
		"sequence": func(_ *render, v any, _ []any) bool {
			switch v := v.(type) {
			case string, *list, *dict:
				return true
			case *undefined:
				v.fail()
			}
			return false
		},
		"callable": func(_ *render, v any, _ []any) bool {
			switch v.(type) {
			case function, *macro, *loop, *undefined:
				return true
			}
			return false
		},
		"escaped": func(*render, any, []any) bool { return false },
		"odd":     func(_ *render, v any, _ []any) bool { n, ok := whole(v); return ok && n%2 != 0 },
		"even":    func(_ *render, v any, _ []any) bool { n, ok := whole(v); return ok && n%2 == 0 },
		"divisibleby": one(func(_ *render, a, b any) bool {
			n, ok := whole(a)
			m, ok2 := whole(b)
			if m == 0 {
				fail("integer modulo by zero")
			}
			return ok && ok2 && n%m == 0
		}),
		"lower": func(r *render, v any, _ []any) bool { return strMethods["islower"](r, r.str(v), nil, nil) == true },
		"upper": func(r *render, v any, _ []any) bool { return strMethods["isupper"](r, r.str(v), nil, nil) == true },
		"sameas": one(func(r *render, a, b any) bool {
			switch a.(type) {
			case nil, bool:
				return a == b
			case *list, *dict, *namespace, *macro:
				return a == b
			}
			return r.equal(a, b) && typeName(a) == typeName(b)
		}),
		"filter": func(_ *render, v any, _ []any) bool { return filters[text(v)] != nil },
		"test":   func(_ *render, v any, _ []any) bool { return tests[text(v)] != nil },
		"in":     cmp("in"),
		"eq":     cmp("=="), "equalto": cmp("=="), "==": cmp("=="),
		"ne": cmp("!="), "!=": cmp("!="),
		"lt": cmp("<"), "lessthan": cmp("<"), "<": cmp("<"),
		"le": cmp("<="), "<=": cmp("<="),
		"gt": cmp(">"), "greaterthan": cmp(">"), ">": cmp(">"),
		"ge": cmp(">="), ">=": cmp(">="),
	}
}
