package imports

import (
	"go/ast"
	"go/token"
	"go/types"
)

// hazard is a construct of Go that Yaegi v0.16.1 accepts and runs wrongly without an error.
type hazard struct {
	name    string
	matches func(ast.Node) bool // reports whether a node is the construct
	exempt  map[string]string   // reasons, by the function's name
}

var hazards = []hazard{
	{
		name: "a call and another expression on the right of one assignment: the other expression is not " +
			"assigned",
		matches: func(n ast.Node) bool {
			assign := assignment(n)
			if assign == nil {
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
		name: "several conditions in a case of a switch without a value: only the first counts",
		matches: func(n ast.Node) bool {
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
		name: "nil among several values of an assignment: a panic",
		matches: func(n ast.Node) bool {
			assign, ok := n.(*ast.AssignStmt)
			return ok && len(assign.Rhs) > 1 && anyNil(assign.Rhs)
		},
	}, {
		name: "a bare nil appended to a slice other than []any: it panics after other uses of nil",
		matches: func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return false
			}
			name, ok := call.Fun.(*ast.Ident)
			return ok && name.Name == "append" && anyNil(call.Args[1:])
		},
		exempt: map[string]string{"write": "statement parameters are a []any"},
	}, {
		name: "a builtin among the results of a return, except the first: it replaces the first result",
		matches: func(n ast.Node) bool {
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
		name:    "a named result in a return, after a result that replaces it",
		matches: returnsReplacedResult,
	}, {
		name: "two values from a map or a type assertion, with = or in a loop: without a value, the first " +
			"variable keeps the old one",
		matches: func(n ast.Node) bool {
			return isTwoValued(n, token.ASSIGN) ||
				inLoop(n, func(n ast.Node) bool { return isTwoValued(n, token.DEFINE) })
		},
	}, {
		name: "a deferred call or a started method, in a loop or with an argument that is set again later: " +
			"it gets the later value",
		matches: evaluatesArgumentsLate,
	}, {
		name: "a struct literal that is assigned, not to a new variable: a caller, a closure and a pointer " +
			"do not see it",
		matches: func(n ast.Node) bool {
			assign := assignment(n)
			if assign == nil || len(assign.Lhs) != len(assign.Rhs) {
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
		name: "an array literal, or the address of a literal of a slice or map, in a loop: it is one " +
			"variable in all iterations",
		matches: func(n ast.Node) bool { return inLoop(n, isSharedLiteral) },
	}, {
		// In Yaegi's interp/run.go, the end of a call of a literal restores what the literal has replaced in
		// the frame (getFunc), while the loop may be about to start the next literal.
		name: "a function literal for AfterFunc or go in a loop: it has the variables of the last " +
			"iteration, or an earlier literal runs in its place",
		matches: func(n ast.Node) bool { return inLoop(n, startsLiteral) },
	}, {
		name: "a range with =: the variables are not set; a range that changes the index: an iteration is " +
			"left out",
		matches: func(n ast.Node) bool {
			r, ok := n.(*ast.RangeStmt)
			if !ok || r.Key == nil {
				return false
			}
			key := types.ExprString(r.Key)
			return r.Tok == token.ASSIGN || key != "_" && setsAny(r.Body, r.Body.Pos(),
				map[string]bool{key: true})
		},
	}, {
		name: "a received value that is assigned to a field or to a variable which a closure or a pointer " +
			"has: it is lost",
		matches: func(n ast.Node) bool {
			assign := assignment(n)
			if assign == nil {
				return false
			}
			received, ok := assign.Rhs[0].(*ast.UnaryExpr)
			return ok && received.Op == token.ARROW && len(assign.Lhs) == 1
		},
	}, {
		name:    "a := of several values that sets a variable again: it makes another variable of that name",
		matches: redeclaresVariable,
	}, {
		name: "a recover in a deferred function literal of a function with results that have no names: " +
			"after a panic it returns what the caller's variable had",
		matches: recoversWithoutResult,
	}, {
		// A call of a method, of a closure or through a function value makes new results. A
		// declared function has those of the call: a variable or field that = assigns to, what
		// the same call returned before, in a loop, and in "return f()" the results of the
		// function that returns.
		name: "a named result that is read before it is set: it has the value that the caller's " +
			"variable had",
		matches: readsUnsetResult,
	}, {
		name: "a select that several goroutines run concurrently: they share its cases",
		// In Yaegi's interp/run.go, _select makes its slice of cases once for a statement, not for each use.
		matches: func(n ast.Node) bool { _, ok := n.(*ast.SelectStmt); return ok },
		exempt: map[string]string{
			"Wait": "the plugin does not wait: Limiter is for Go programs",
		},
	},
}

// assignment returns the assignment to existing variables that a node is, or nil.
func assignment(n ast.Node) *ast.AssignStmt {
	if assign, ok := n.(*ast.AssignStmt); ok && assign.Tok == token.ASSIGN {
		return assign
	}
	return nil
}

// hazardsIn returns the hazards in a declaration.
func hazardsIn(declaration ast.Decl) map[ast.Node]string {
	function := ""
	if f, ok := declaration.(*ast.FuncDecl); ok {
		function = f.Name.Name
	}
	found := map[ast.Node]string{}
	ast.Inspect(declaration, func(n ast.Node) bool {
		for _, h := range hazards {
			if h.exempt[function] == "" && n != nil && h.matches(n) {
				found[n] = h.name
			}
		}
		return true
	})
	return found
}
