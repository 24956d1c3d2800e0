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
	found              func(ast.Node) bool
	fine               string            // code that Yaegi runs correctly and found accepts
	exempt             map[string]string // reasons, by the function's name
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
		name:  "a function literal for AfterFunc in a loop: it has the variables of the last iteration",
		setup: `import "time"; func hazard() bool { c := make(chan int, 2); for i := 0; i < 2; i++ { i := i; time.AfterFunc(20*time.Millisecond, func() { c <- i }) }; return <-c + <-c == 1 }`,
		proof: `hazard()`,
		fine:  `func f(c chan int) { time.AfterFunc(1, func() { c <- 1 }); for i := 0; i < 2; i++ { i := i; go func() { c <- i }() } }`,
		found: func(n ast.Node) bool { return inLoop(n, isAfterFuncLiteral) },
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
		name: "a select that several goroutines are in at once: they share its cases",
		// There is no proof: it is a race. In Yaegi's interp/run.go, _select makes
		// its slice of cases once a statement, not once a use.
		found: func(n ast.Node) bool { _, ok := n.(*ast.SelectStmt); return ok },
		exempt: map[string]string{
			"Wait": "the plugin does not wait: Limiter is for Go programs",
		},
	},
}

func anyNil(expressions []ast.Expr) bool {
	for _, e := range expressions {
		if name, ok := e.(*ast.Ident); ok && name.Name == "nil" {
			return true
		}
	}
	return false
}

// builtins are the builtin functions with a result.
var builtins = map[string]bool{"append": true, "cap": true, "copy": true, "len": true, "make": true, "new": true}

// contains reports whether a node, or a node in it, matches.
func contains(n ast.Node, matches func(ast.Node) bool) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		found = found || n != nil && matches(n)
		return !found
	})
	return found
}

// inLoop reports whether a node is a loop with a body that contains what matches.
func inLoop(n ast.Node, matches func(ast.Node) bool) bool {
	switch loop := n.(type) {
	case *ast.ForStmt:
		return contains(loop.Body, matches)
	case *ast.RangeStmt:
		return contains(loop.Body, matches)
	}
	return false
}

// isTwoValued reports whether a node assigns the two values of a map entry or of a type
// assertion, and uses the first.
func isTwoValued(n ast.Node, tok token.Token) bool {
	assign, ok := n.(*ast.AssignStmt)
	if !ok || assign.Tok != tok || len(assign.Lhs) != 2 || len(assign.Rhs) != 1 || types.ExprString(assign.Lhs[0]) == "_" {
		return false
	}
	switch assign.Rhs[0].(type) {
	case *ast.IndexExpr, *ast.TypeAssertExpr:
		return true
	}
	return false
}

// isSequence reports whether a literal is of an array, a slice or a map.
func isSequence(literal *ast.CompositeLit) bool {
	switch literal.Type.(type) {
	case *ast.ArrayType, *ast.MapType:
		return true
	}
	return false
}

// isSharedLiteral reports whether a node makes a variable of an array literal, or has the address
// of a literal of an array, a slice or a map.
func isSharedLiteral(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.UnaryExpr:
		literal, ok := n.X.(*ast.CompositeLit)
		return ok && n.Op == token.AND && isSequence(literal)
	case *ast.AssignStmt:
		for _, e := range n.Rhs {
			if literal, ok := e.(*ast.CompositeLit); ok {
				if array, ok := literal.Type.(*ast.ArrayType); ok && array.Len != nil {
					return true
				}
			}
		}
	}
	return false
}

// isAfterFuncLiteral reports whether a node is a call of time.AfterFunc or context.AfterFunc with
// a function literal.
func isAfterFuncLiteral(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 2 {
		return false
	}
	_, literal := call.Args[1].(*ast.FuncLit)
	name, selector := call.Fun.(*ast.SelectorExpr)
	return literal && selector && name.Sel.Name == "AfterFunc"
}

// setsAny reports whether a node sets any of some variables and fields after a place.
func setsAny(n ast.Node, after token.Pos, names map[string]bool) bool {
	return contains(n, func(n ast.Node) bool {
		var set []ast.Expr
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				set = n.Lhs
			}
		case *ast.IncDecStmt:
			set = []ast.Expr{n.X}
		}
		for _, e := range set {
			if e.Pos() > after && names[types.ExprString(e)] {
				return true
			}
		}
		return false
	})
}

// evaluatesLate reports whether a node is a loop with a deferred call or a started method, or a
// function that sets again what it has given to one.
func evaluatesLate(n ast.Node) bool {
	if inLoop(n, func(n ast.Node) bool { return lateCall(n) != nil }) {
		return true
	}
	_, body := functionOf(n)
	return body != nil && contains(body, func(n ast.Node) bool {
		call := lateCall(n)
		if call == nil {
			return false
		}
		names := map[string]bool{}
		for _, e := range append([]ast.Expr{call.Fun}, call.Args...) {
			ast.Inspect(e, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncLit:
					return false
				case *ast.UnaryExpr:
					return n.Op != token.AND // an address stays the same
				case ast.Expr:
					names[types.ExprString(n)] = true
				}
				return true
			})
		}
		return setsAny(body, call.End(), names)
	})
}

// lateCall is the call that a node defers, or the call of a method that it starts; nil for all
// others.
func lateCall(n ast.Node) *ast.CallExpr {
	switch n := n.(type) {
	case *ast.DeferStmt:
		return n.Call
	case *ast.GoStmt:
		if _, ok := n.Call.Fun.(*ast.SelectorExpr); ok {
			return n.Call
		}
	}
	return nil
}

// redeclares reports whether a node is a function or block in which a := of several values sets a
// variable of the same block, a parameter or a result.
func redeclares(n ast.Node) bool {
	block, _ := n.(*ast.BlockStmt)
	known := map[string]bool{}
	if f, body := functionOf(n); body != nil {
		block = body
		for _, list := range []*ast.FieldList{f.Params, f.Results} {
			if list == nil {
				continue
			}
			for _, field := range list.List {
				for _, name := range field.Names {
					known[name.Name] = true
				}
			}
		}
	}
	if block == nil {
		return false
	}
	for _, s := range block.List {
		assign, ok := s.(*ast.AssignStmt)
		if !ok || assign.Tok != token.DEFINE {
			continue
		}
		for _, e := range assign.Lhs {
			name := types.ExprString(e)
			if len(assign.Rhs) > 1 && known[name] {
				return true
			}
			known[name] = name != "_"
		}
	}
	return false
}
