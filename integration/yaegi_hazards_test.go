package integration

import (
	"go/ast"
	"go/token"
	"go/types"
)

// hazard is a construct of Go that Yaegi v0.16.1 accepts and runs wrongly without an error.
// proof is an expression that is true in Go and not in Yaegi, after setup.
type hazard struct {
	name, setup, proof string
	found              func(ast.Node) bool // nil if internal/testkit/imports looks for it, because that needs types
	fine               string              // code that Yaegi runs correctly and found accepts
	exempt             map[string]string   // reasons, by the function's name
}

var hazards = []hazard{
	{
		name:  "a call and another expression on the right of one assignment: the other expression is not assigned",
		setup: `func seven() int { return 7 }; func hazard() bool { a, b := 0, 0; a, b = seven(), 1; return a == 7 && b == 1 }`,
		proof: `hazard()`,
		found: func(n ast.Node) bool {
			assign, ok := n.(*ast.AssignStmt)
			if !ok || assign.Tok != token.ASSIGN || len(assign.Rhs) < 2 {
				return false
			}
			calls := 0
			for _, e := range assign.Rhs {
				if _, ok := e.(*ast.CallExpr); ok {
					calls++
				}
			}
			return calls > 0 && calls < len(assign.Rhs)
		},
	}, {
		name:  "several conditions in a case of a switch without a value: only the first counts",
		setup: `func hazard(n int) bool { switch { case n == 1, n == 2: return true }; return false }`,
		proof: `hazard(2)`,
		found: func(n ast.Node) bool {
			s, ok := n.(*ast.SwitchStmt)
			if !ok || s.Tag != nil {
				return false
			}
			for _, c := range s.Body.List {
				if len(c.(*ast.CaseClause).List) > 1 {
					return true
				}
			}
			return false
		},
	}, {
		name:  "nil among several values of an assignment: it panics",
		setup: `func hazard() (ok bool) { defer func() { ok = recover() == nil }(); var e error; n := 0; n, e = 1, nil; return n == 1 && e == nil }`,
		proof: `hazard()`,
		found: func(n ast.Node) bool {
			assign, ok := n.(*ast.AssignStmt)
			return ok && len(assign.Rhs) > 1 && anyNil(assign.Rhs)
		},
	}, {
		name:  "a bare nil appended, but to a []any: after other uses of nil it panics",
		setup: `func hazard() (ok bool) { defer func() { ok = recover() == nil }(); var e []error; e = append(e, nil); var l [][]byte; l = append(l, nil); return len(e) == len(l) }`,
		proof: `hazard()`,
		found: func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return false
			}
			name, ok := call.Fun.(*ast.Ident)
			return ok && name.Name == "append" && anyNil(call.Args[1:])
		},
		exempt: map[string]string{"write": "statement parameters are a []any"},
	}, {
		name:  "a builtin among the results of a return, but as the first: it is stored as the first",
		setup: `func lens(a, b []int) (int, int) { return len(a), len(b) }; func hazard() bool { x, y := lens(make([]int, 1), make([]int, 2)); return x == 1 && y == 2 }`,
		proof: `hazard()`,
		fine:  `func f(a []int) (int, bool) { return len(a), true }`,
		found: func(n ast.Node) bool {
			r, ok := n.(*ast.ReturnStmt)
			if !ok || len(r.Results) < 2 {
				return false
			}
			for _, e := range r.Results[1:] {
				if call, ok := e.(*ast.CallExpr); ok && builtins[types.ExprString(call.Fun)] {
					return true
				}
			}
			return false
		},
	}, {
		name:  "a named result in a return, after a result that replaces it",
		setup: `func swap() (a, b int) { a, b = 1, 2; return b, a }; func hazard() bool { x, y := swap(); return x == 2 && y == 1 }`,
		proof: `hazard()`,
		fine:  `func f() (a, b int) { a, b = 1, 2; return a, b }`,
		found: returnsReplacedResult,
	}, {
		name:  "two values from a map or a type assertion, with = or in a loop: the first value keeps what it was if there is none",
		setup: `func hazard() bool { m := map[int]int{0: 5}; sum := 0; for i := 0; i < 2; i++ { n, _ := m[i]; sum += n }; return sum == 5 }`,
		proof: `hazard()`,
		fine:  `func f(m map[int]int) bool { for k := range m { if _, ok := m[k+1]; ok { return true } }; n, ok := m[1]; return ok && n == 1 }`,
		found: func(n ast.Node) bool {
			return isTwoValued(n, token.ASSIGN) || inLoop(n, func(n ast.Node) bool { return isTwoValued(n, token.DEFINE) })
		},
	}, {
		name:  "a deferred call, or a started method, in a loop or with what is set again later: it gets the later value",
		setup: `func hazard() (got int) { got = 0; func() { n := 1; defer func(n int) { got = n }(n); n = 2 }(); return got }`,
		proof: `hazard() == 1`,
		fine:  `func f(t *T) { t.mu.Lock(); defer t.mu.Unlock(); t.n = 1; for i := 0; i < 2; i++ { go g(i) } }`,
		found: evaluatesLate,
	}, {
		name:  "a struct literal that is assigned, not to a new variable: a caller, a closure and a pointer do not see it",
		setup: `type pair struct{ a, b int }; func one() (p pair) { p = pair{1, 1}; return p }; func hazard() bool { p := one(); return p.a == 1 }`,
		proof: `hazard()`,
		fine:  `func f(t *T, l []P) { p := P{1}; t.p = P{2}; l[0] = P{3}; m := []int{}; m = []int{4} }`,
		found: func(n ast.Node) bool {
			assign, ok := n.(*ast.AssignStmt)
			if !ok || assign.Tok != token.ASSIGN || len(assign.Lhs) != len(assign.Rhs) {
				return false
			}
			for i, e := range assign.Rhs {
				literal, ok := e.(*ast.CompositeLit)
				if _, variable := assign.Lhs[i].(*ast.Ident); ok && variable && !isSequence(literal) {
					return true
				}
			}
			return false
		},
	}, {
		name:  "an array literal, or the address of a literal of a slice or map, in a loop: it is one variable in all iterations",
		setup: `func hazard() bool { var all [][]int; for i := 0; i < 2; i++ { a := [1]int{i}; all = append(all, a[:]) }; return all[0][0] == 0 }`,
		proof: `hazard()`,
		fine:  `func f() { a := [1]int{1}; for i := 0; i < 2; i++ { l := []int{i}; g(l, &T{i}) } }`,
		found: func(n ast.Node) bool { return inLoop(n, isSharedLiteral) },
	}, {
		// With go, there is no proof: it is a race. In Yaegi's interp/run.go, the end of a call
		// of a literal puts back what the literal has replaced in the frame (getFunc), while the
		// loop may be about to start the next literal.
		name:  "a function literal for AfterFunc or go in a loop: it has the variables of the last iteration, or an earlier literal runs in its place",
		setup: `import "time"; func hazard() bool { c := make(chan int, 2); for i := 0; i < 2; i++ { i := i; time.AfterFunc(20*time.Millisecond, func() { c <- i }) }; return <-c + <-c == 1 }`,
		proof: `hazard()`,
		fine:  `func f(c chan int) { time.AfterFunc(1, func() { c <- 1 }); go func() { c <- 2 }(); for i := 0; i < 2; i++ { go send(c, i) } }`,
		found: func(n ast.Node) bool { return inLoop(n, startsLiteral) },
	}, {
		name:  "a range with =, or whose body changes the index: the variables are not set, or an iteration is left out",
		setup: `func hazard() bool { var i, v int; for i, v = range []int{7, 8} { }; return i == 1 && v == 8 }`,
		proof: `hazard()`,
		fine:  `func f(l []int) { for i := range l { l[i]++ }; for _, n := range l { _, n = g(n) } }`,
		found: func(n ast.Node) bool {
			r, ok := n.(*ast.RangeStmt)
			if !ok || r.Key == nil {
				return false
			}
			key := types.ExprString(r.Key)
			return r.Tok == token.ASSIGN || key != "_" && setsAny(r.Body, r.Body.Pos(), map[string]bool{key: true})
		},
	}, {
		name:  "a received value that is assigned to a field or to a variable which a closure or a pointer has: it is lost",
		setup: `func hazard() bool { c := make(chan int, 1); c <- 3; t := &struct{ n int }{}; t.n = <-c; return t.n == 3 }`,
		proof: `hazard()`,
		fine:  `func f(c chan int) int { n := <-c; return n }`,
		found: func(n ast.Node) bool {
			assign, ok := n.(*ast.AssignStmt)
			if !ok || assign.Tok != token.ASSIGN {
				return false
			}
			received, ok := assign.Rhs[0].(*ast.UnaryExpr)
			return ok && received.Op == token.ARROW && len(assign.Lhs) == 1
		},
	}, {
		name:  "a := of several values that sets a variable again: it makes another variable of that name",
		setup: `func last() (n int) { n = 1; m, n := 2, 3; _ = m; return }; func hazard() bool { n := last(); return n == 3 }`,
		proof: `hazard()`,
		fine:  `func f(n int) { { m, n := 1, 2; g(m, n) }; a, b := 1, 2; g(a, b) }`,
		found: redeclares,
	}, {
		name:  "a recover in a deferred function literal of a function with results that have no names: after a panic it returns what the caller's variable had",
		setup: `func fails(n int) bool { defer func() { recover() }(); if n == 1 { return true }; panic("x") }; func hazard() bool { n := 0; for i := 1; i < 3; i++ { if fails(i) { n++ } }; return n == 1 }`,
		proof: `hazard()`,
		fine:  `func f() (err error) { defer func() { if recover() != nil { err = errFailed } }(); return g() }`,
		found: recoversWithoutResult,
	}, {
		// A call of a method, of a closure or through a function value makes new results. A
		// declared function has those of the call: a variable or field that = assigns to, what
		// the same call returned before, in a loop, and in "return f()" the results of the
		// function that returns.
		name:  "a named result that is read before it is set: it has the value that the caller's variable had",
		setup: `func list(n int) (l []int) { if n > 0 { l = append(l, n) }; return l }; func hazard() bool { total := 0; for n := 1; n < 3; n++ { l := list(n); total += len(l) }; return total == 2 }`,
		proof: `hazard()`,
		found: readsUnsetResult,
	}, {
		name:  "a variable in an interface value that is set again: the interface value changes with it",
		setup: `type counter interface{ n() int }; type one struct{ c int }; func (o *one) n() int { return o.c }; func hazard() bool { var l []counter; for _, o := range []*one{{1}, {2}} { l = append(l, o) }; return l[0].n() == 1 }`,
		proof: `hazard()`,
	}, {
		name:  "a method value whose receiver is set again: it has the later receiver",
		setup: `type one struct{ c int }; func (o *one) n() int { return o.c }; func hazard() bool { o := &one{1}; f := o.n; o = &one{2}; return f() == 1 && o.c == 2 }`,
		proof: `hazard()`,
	}, {
		name:  "interface values that are compared: they differ",
		setup: `type thing interface{ n() }; type one struct{ c int }; func (*one) n() {}; func hazard() bool { o := &one{1}; var a, b thing = o, o; return a == b }`,
		proof: `hazard()`,
	}, {
		name:  "the index in a range over a string: it counts characters",
		setup: `func hazard() bool { last := 0; for i := range "éé" { last = i }; return last == 2 }`,
		proof: `hazard()`,
	}, {
		name: "a select that several goroutines are in at once: they share its cases",
		// There is no proof: it is a race. In Yaegi's interp/run.go, _select makes
		// its slice of cases once a statement, not once a use.
		found: func(n ast.Node) bool { _, ok := n.(*ast.SelectStmt); return ok },
		exempt: map[string]string{
			"Wait": "the plugin does not wait: Limiter is for Go programs",
		},
	},
}
